// Which layers are sparse, and which attend through a window.
#include "model/config_parts.h"

#include "base/error.h"

namespace scalewright {

namespace {

std::vector<bool> from_layer_types(const ConfigKeys& keys, int64_t layers) {
  const auto types = *keys.maybe_texts({"mlp_layer_types"});
  const std::string allowed = fmt::format("one of \"dense\" and \"sparse\" for each of the {} layers", layers);
  if (static_cast<int64_t>(types.size()) != layers) keys.refuse("mlp_layer_types", fmt::format("{} (it has {})", allowed, types.size()));
  std::vector<bool> sparse;
  for (const std::string& type : types) {
    if (type != "dense" && type != "sparse") keys.refuse("mlp_layer_types", allowed);
    sparse.push_back(type == "sparse");
  }
  return sparse;
}

std::vector<bool> from_dense_prefix(int64_t dense, int64_t layers) {
  std::vector<bool> sparse;
  for (int64_t layer = 0; layer < layers; ++layer) sparse.push_back(layer >= dense);
  return sparse;
}

std::vector<bool> from_sparse_step(const ConfigKeys& keys, int64_t layers) {
  const auto dense = keys.maybe_integers({"mlp_only_layers"}).value_or(std::vector<int64_t>{});
  const int64_t step = keys.maybe_integer({"decoder_sparse_step"}, {1, 1 << 20}).value_or(1);
  std::vector<bool> sparse;
  for (int64_t layer = 0; layer < layers; ++layer) {
    sparse.push_back((layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end());
  }
  return sparse;
}

}  // namespace

std::vector<bool> read_sparse_layers(const ConfigKeys& keys, const ModelConfig& config) {
  const int64_t layers = config.layers;
  if (config.experts == 0) return std::vector<bool>(layers, false);
  std::vector<std::pair<std::string, std::vector<bool>>> said;
  if (keys.has({"mlp_layer_types"})) said.emplace_back("mlp_layer_types", from_layer_types(keys, layers));
  if (const auto dense = keys.maybe_integer({"first_k_dense_replace"}, {0, 1 << 20})) {
    said.emplace_back("first_k_dense_replace", from_dense_prefix(*dense, layers));
  }
  const bool qwen = config.type == ModelType::kQwen3Moe;
  // transformers writes mlp_only_layers and decoder_sparse_step into every qwen3_moe config, so their defaults do not contradict.
  const bool stepped = keys.has({"mlp_only_layers"}) || keys.has({"decoder_sparse_step"});
  if (stepped) {
    const auto sparse = from_sparse_step(keys, layers);
    const bool all_sparse = std::find(sparse.begin(), sparse.end(), false) == sparse.end();
    if (said.empty() || !all_sparse) said.emplace_back("mlp_only_layers and decoder_sparse_step", sparse);
  }
  // Without any of them every layer of a qwen3_moe is sparse, and all but the first of a hy_v3.
  if (said.empty()) return from_dense_prefix(qwen ? 0 : 1, layers);
  for (const auto& [name, sparse] : said) {
    if (sparse == said.front().second) continue;
    keys.refuse(said.front().first, fmt::format("agreement with {} on which layers are dense", name), "remove the one that is wrong");
  }
  return said.front().second;
}

void refuse_sliding_window(const ConfigKeys& keys, const ModelConfig& config) {
  const std::string hint = "only full causal attention is implemented";
  if (const auto types = keys.maybe_texts({"layer_types"})) {
    for (const std::string& type : *types) {
      if (type != "full_attention") keys.refuse("layer_types", "full_attention for all layers", hint);
    }
    return;
  }
  if (config.type == ModelType::kLlama || config.type == ModelType::kHyV3) return;   // they have no such key
  if (!keys.flag({"use_sliding_window"}, false)) return;
  const auto window = keys.maybe_integer({"sliding_window"}, {1, int64_t{1} << 40});
  if (!window || *window >= config.max_position) return;
  const bool all_layers = config.type == ModelType::kQwen3Moe;
  const int64_t first = all_layers ? 0 : keys.maybe_integer({"max_window_layers"}, {0, 1 << 20}).value_or(28);
  if (first < config.layers) {
    keys.refuse("use_sliding_window", fmt::format("false (layers {} to {} would see {} tokens only)", first, config.layers - 1, *window), hint);
  }
}

}  // namespace scalewright
