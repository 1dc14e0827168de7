// Counts for reports: parameters, and the multiply-adds of a forward pass.
#include "model/decoder.h"

namespace scalewright {
namespace {

// Weights of a projection that one token meets: top_k of the routed experts, all of the others.
double active_weights(const ProjectionSpec& spec, const ModelConfig& config) {
  const double one = static_cast<double>(spec.rows) * static_cast<double>(spec.columns);
  return spec.routed() ? one * static_cast<double>(config.top_k) : one;
}

}  // namespace

int64_t parameter_count(const ModelConfig& config) {
  int64_t total = config.vocabulary * config.hidden * (config.tied_head ? 1 : 2) + config.hidden;
  for (const ProjectionSpec& spec : projections(config)) total += spec.experts * spec.rows * (spec.columns + (spec.has_bias ? 1 : 0));
  for (int64_t i = 0; i < config.layers; ++i) {
    total += 2 * config.hidden + (config.qk_norm ? 2 * config.head_dim : 0);
    if (config.sparse[static_cast<std::size_t>(i)]) total += config.experts * (config.hidden + (config.sigmoid_router ? 1 : 0));
  }
  return total;
}

double forward_flops_per_token(const ModelConfig& config, double context) {
  double weights = static_cast<double>(config.vocabulary) * static_cast<double>(config.hidden);
  for (const ProjectionSpec& spec : projections(config)) weights += active_weights(spec, config);
  for (bool sparse : config.sparse)
    if (sparse) weights += static_cast<double>(config.experts) * static_cast<double>(config.hidden);
  // Scores and weighted values of causal attention: half of the context on average.
  const double attention = 2.0 * static_cast<double>(config.layers * config.heads * config.head_dim) * context / 2.0;
  return 2.0 * (weights + attention);
}

}  // namespace scalewright
