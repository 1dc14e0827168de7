#include "model/decoder.h"

#include <set>

#include "base/error.h"
#include "model/layer.h"
#include "ops/gemm.h"
#include "ops/norm.h"

namespace scalewright {

void KvCache::select(const std::vector<int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::kLong);
  for (std::size_t layer = 0; layer < k.size(); ++layer) {
    k[layer] = k[layer].index_select(0, index.to(k[layer].device()));
    v[layer] = v[layer].index_select(0, index.to(v[layer].device()));
  }
  std::vector<int64_t> kept;
  for (int64_t row : rows) kept.push_back(lengths.at(static_cast<std::size_t>(row)));
  lengths = std::move(kept);
}

Decoder::Decoder(const ModelConfig& config, const ModelWeights& weights, const Compute& compute, const Mesh&) : config_(config), compute_(compute) {
  const std::vector<ProjectionSpec> specs = scalewright::projections(config);
  for (int64_t i = 0; i < config.layers; ++i) layers_.push_back(std::make_unique<Layer>(config, weights, i, specs, compute));
  embedding_ = weights.tensor("model.embed_tokens.weight").to(compute.device);
  final_norm_ = weights.tensor("model.norm.weight").to(compute.device, compute.dtype);
  head_ = weights.tensor("lm_head.weight").to(compute.device, compute.dtype);
  rope_ = rope_frequencies(config);
}

Decoder::~Decoder() = default;

std::vector<Projection*> Decoder::projections() {
  std::vector<Projection*> result;
  for (auto& layer : layers_) layer->collect(result);
  return result;
}

void Decoder::quantize(const QuantPlan& plan) {
  for (Projection* projection : projections()) {
    const auto format = plan.formats.find(projection->spec().name);
    if (format != plan.formats.end()) projection->add_format(*format->second, plan);
  }
}

bool Decoder::needs_calibration() const {
  for (Projection* projection : const_cast<Decoder*>(this)->projections()) {
    ActivationQuantizer* input = projection->input_quantizer();
    if (input && input->has_global() && projection->weight_quantizer()->numerics() == Numerics::kDeploy && !input->ref().defined()) return true;
  }
  return false;
}

at::Tensor Decoder::forward(const Batch& batch, const ForwardOptions& options) {
  const at::Tensor ids = batch.ids.to(compute_.device);
  SW_CHECK(batch.offsets.back() == ids.size(0), "offsets end at {}, batch has {} tokens", batch.offsets.back(), ids.size(0));
  const RopeTable rope = make_rope_table(compute_, batch.positions.to(compute_.device), rope_.inverse, rope_.attention_scaling);
  at::Tensor x = embedding_.index_select(0, ids).to(compute_.dtype);
  KvCache* cache = options.fill_cache;
  if (cache) {
    cache->k.resize(layers_.size());
    cache->v.resize(layers_.size());
    cache->lengths.clear();
    for (std::size_t d = 0; d + 1 < batch.offsets.size(); ++d) cache->lengths.push_back(batch.offsets[d + 1] - batch.offsets[d]);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (cache) {
      LayerCache fill{cache->k[i], cache->v[i]};
      x = layers_[i]->forward(x, batch.offsets, rope, options.mode, &fill);
    } else if (options.recompute && at::GradMode::is_enabled()) {
      x = layers_[i]->forward_recomputed(x, batch.offsets, rope, options.mode);
    } else {
      x = layers_[i]->forward(x, batch.offsets, rope, options.mode, nullptr);
    }
    if (options.taps) (*options.taps)[fmt::format("layers.{}", i)] = x;
  }
  x = rms_norm(x, final_norm_, config_.norm_eps);
  if (options.taps) (*options.taps)["norm"] = x;
  return x;
}

at::Tensor Decoder::step(const at::Tensor& ids_B, KvCache& cache, Mode mode) {
  at::NoGradGuard no_grad;
  SW_CHECK(cache.k.size() == layers_.size() && static_cast<int64_t>(cache.lengths.size()) == ids_B.size(0), "the cache holds {} sequences, {} tokens came",
           cache.lengths.size(), ids_B.size(0));
  const at::Tensor positions = at::tensor(cache.lengths, at::kLong).to(compute_.device);
  const RopeTable rope = make_rope_table(compute_, positions, rope_.inverse, rope_.attention_scaling);
  at::Tensor x = embedding_.index_select(0, ids_B.to(compute_.device)).to(compute_.dtype);
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i]->step(x, cache.lengths, rope, mode, {cache.k[i], cache.v[i]});
  for (int64_t& length : cache.lengths) ++length;
  return rms_norm(x, final_norm_, config_.norm_eps);
}

at::Tensor Decoder::logits(const at::Tensor& hidden_TH) const { return matmul_nt(compute_, hidden_TH, head_).to(compute_.accurate()); }

std::vector<Trainable> Decoder::trainables() {
  std::vector<Trainable> result;
  for (Projection* projection : projections())
    for (Trainable& trainable : projection->trainables()) result.push_back(std::move(trainable));
  return result;
}

void Decoder::refresh() {
  for (Projection* projection : projections()) projection->refresh();
}

std::map<std::string, at::Tensor> Decoder::quantizer_state() {
  std::map<std::string, at::Tensor> state;
  for (Projection* projection : projections()) {
    if (!projection->quantized()) continue;
    state["alpha/" + projection->spec().name] = projection->weight_quantizer()->alpha().detach();
    ActivationQuantizer* input = projection->input_quantizer();
    if (!input || !input->has_global()) continue;
    state["alpha/" + projection->spec().input_name] = input->alpha().detach();
    if (input->ref().defined()) state["ref/" + projection->spec().input_name] = input->ref();
  }
  return state;
}

void Decoder::load_quantizer_state(const std::map<std::string, at::Tensor>& state, const std::string& source) {
  at::NoGradGuard no_grad;
  std::vector<std::string> faults;
  std::set<std::string> used;
  auto take = [&](const std::string& name, const at::Tensor& like) -> const at::Tensor* {
    const auto found = state.find(name);
    if (found == state.end()) {
      faults.push_back("missing: " + name);
      return nullptr;
    }
    used.insert(name);
    if (like.defined() && found->second.sizes() != like.sizes()) {
      faults.push_back(fmt::format("{} has shape {}, expected {}", name, fmt::join(found->second.sizes(), "x"), fmt::join(like.sizes(), "x")));
      return nullptr;
    }
    return &found->second;
  };
  // First everything is checked, then copied: a refused state leaves the model as it was.
  std::vector<std::function<void()>> copies;
  for (Projection* projection : projections()) {
    if (!projection->quantized()) continue;
    at::Tensor alpha = projection->weight_quantizer()->alpha();
    if (const at::Tensor* value = take("alpha/" + projection->spec().name, alpha)) copies.push_back([alpha, value] { alpha.copy_(*value); });
    ActivationQuantizer* input = projection->input_quantizer();
    if (!input || !input->has_global()) continue;
    at::Tensor input_alpha = input->alpha();
    if (const at::Tensor* value = take("alpha/" + projection->spec().input_name, input_alpha))
      copies.push_back([input_alpha, value] { input_alpha.copy_(*value); });
    if (const at::Tensor* value = take("ref/" + projection->spec().input_name, input_alpha))
      copies.push_back([input, value, device = compute_.device] { input->set_ref(value->to(device, at::kFloat).clone()); });
  }
  for (const auto& [name, value] : state)
    if (!used.count(name)) faults.push_back("not known to this model and format: " + name);
  if (!faults.empty()) {
    const std::size_t shown = std::min<std::size_t>(faults.size(), 20);
    throw DataError(fmt::format("{}: the scales do not fit the model ({} faults):\n  {}\nhint: they must come from the same model, format and numerics",
                                source, faults.size(), fmt::join(faults.begin(), faults.begin() + shown, "\n  ")));
  }
  for (auto& copy : copies) copy();
  refresh();
}

}  // namespace scalewright
