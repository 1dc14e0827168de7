#include "model/decoder.h"

#include <set>

#include "base/error.h"
#include "base/failpoint.h"
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

Decoder::Decoder(const ModelConfig& config, const ModelWeights& weights, const Compute& compute, const Mesh& mesh, int64_t unit)
    : config_(config), compute_(compute), mesh_(mesh) {
  const std::vector<ProjectionSpec> specs = scalewright::projections(config);
  const IndexRange own = stage_layers(config, mesh_);
  first_layer_ = own.begin;
  for (int64_t i = own.begin; i < own.end; ++i) {
    failpoint("model.load");
    layers_.push_back(std::make_unique<Layer>(config, weights, i, specs, compute, mesh_, unit));
  }
  vocabulary_ = compute.deterministic ? IndexRange{0, config.vocabulary} : split_range(config.vocabulary, 1, mesh_.tp().size(), mesh_.tp().rank());
  const auto vocabulary_rows = [&](const char* name) { return weights.tensor(name).narrow(0, vocabulary_.begin, vocabulary_.size()); };
  if (first_stage()) embedding_ = vocabulary_rows("model.embed_tokens.weight").to(compute.device);
  if (last_stage()) {
    final_norm_ = weights.tensor("model.norm.weight").to(compute.device, compute.dtype);
    head_ = vocabulary_rows("lm_head.weight").to(compute.device, compute.dtype);
  }
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

int64_t Decoder::local_parameters() const {
  int64_t total = 0;
  for (const at::Tensor& x : {embedding_, final_norm_, config_.tied_head && first_stage() ? at::Tensor() : head_}) total += x.defined() ? x.numel() : 0;
  for (const auto& layer : layers_) total += layer->parameters();
  return total;
}

/// Rows of the embedding for this rank's tokens: each tp rank looks up what lies in its part of the vocabulary.
at::Tensor Decoder::embed(const LocalBatch& batch) const {
  const at::Tensor ids = (compute_.deterministic ? batch.own(batch.ids) : batch.ids).to(compute_.device);
  if (compute_.deterministic || mesh_.tp().alone()) return embedding_.index_select(0, ids).to(compute_.dtype);
  const at::Tensor here = (ids >= vocabulary_.begin).logical_and(ids < vocabulary_.end);
  const at::Tensor rows = embedding_.index_select(0, at::where(here, ids - vocabulary_.begin, 0)).to(compute_.dtype);
  return mesh_.tp().reduce_scatter(rows.masked_fill(here.logical_not().unsqueeze(1), 0), batch.layout.tp_rows);
}

at::Tensor Decoder::forward(const Batch& batch, const ForwardOptions& options) {
  SW_CHECK(mesh_.size() == 1, "{} ranks need a localized batch", mesh_.size());
  return forward(std::make_shared<LocalBatch>(localize(batch, mesh_)), options);
}

at::Tensor Decoder::forward(const std::shared_ptr<const LocalBatch>& batch, const ForwardOptions& options) {
  const RopeTable rope = make_rope_table(compute_, (compute_.deterministic ? batch->own(batch->positions) : batch->positions).to(compute_.device), rope_.inverse, rope_.attention_scaling);
  const LayoutPtr layout(batch, &batch->layout);
  at::Tensor x = first_stage() ? embed(*batch) : options.input;
  SW_CHECK(x.defined() && x.size(0) == layout->own_tokens(), "{} tokens reach this stage", x.defined() ? x.size(0) : -1);
  KvCache* cache = options.fill_cache;
  if (cache) {
    SW_CHECK(mesh_.size() == 1, "a cache is filled by {} ranks", mesh_.size());
    const std::vector<int64_t>& offsets = layout->attention.offsets;
    cache->k.resize(layers_.size());
    cache->v.resize(layers_.size());
    cache->lengths.clear();
    for (std::size_t d = 0; d + 1 < offsets.size(); ++d) cache->lengths.push_back(offsets[d + 1] - offsets[d]);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (cache) {
      LayerCache fill{cache->k[i], cache->v[i]};
      x = layers_[i]->forward(x, layout, rope, options.mode, &fill);
    } else if (options.recompute && at::GradMode::is_enabled() && (options.recompute_layers == 0 || static_cast<int64_t>(i) < options.recompute_layers)) {
      x = layers_[i]->forward_recomputed(x, layout, rope, options.mode);
    } else {
      x = layers_[i]->forward(x, layout, rope, options.mode, nullptr);
    }
    if (options.taps) (*options.taps)[fmt::format("layers.{}", first_layer_ + static_cast<int64_t>(i))] = x;
  }
  if (!last_stage()) return x;
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

at::Tensor Decoder::gather_logits(const at::Tensor& hidden_tH, const LocalBatch& batch, int64_t total) const {
  at::NoGradGuard no_grad;
  const Group& tp = mesh_.tp();
  at::Tensor result = logits(compute_.deterministic ? hidden_tH : tp.all_gather(hidden_tH.contiguous(), batch.layout.tp_rows));
  if (compute_.deterministic) {
    result = tp.all_gather(result, batch.layout.tp_rows);
  } else if (!tp.alone()) {
    std::vector<int64_t> columns;
    for (int r = 0; r < tp.size(); ++r) columns.push_back(split_range(config_.vocabulary, 1, tp.size(), r).size());
    result = tp.all_gather(result.t().contiguous(), columns).t();
  }
  at::Tensor whole = at::zeros({total, config_.vocabulary}, result.options());
  whole.index_copy_(0, batch.index.to(whole.device()), result);
  mesh_.data().all_reduce(whole, Reduce::kSum);
  return whole;
}

void Decoder::sum_gradients() {
  if (compute_.deterministic) {
    for (Projection* projection : projections()) projection->take_gradients();
    return;
  }
  if (mesh_.stage().alone()) return;
  for (Trainable& trainable : trainables()) {
    at::Tensor gradient = trainable.tensor.grad().defined() ? trainable.tensor.grad() : at::zeros_like(trainable.tensor);
    trainable.placement->sum_gradient(gradient);
    trainable.tensor.mutable_grad() = gradient;
  }
}

void Decoder::share_calibration() {
  for (Projection* projection : projections())
    if (ActivationQuantizer* input = projection->input_quantizer()) input->share_observed();
}

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
    const auto gathered = [](const std::shared_ptr<const ScalePlacement>& placement, const at::Tensor& local) {
      return placement ? placement->gather(local) : local.detach();
    };
    state["alpha/" + projection->spec().name] = gathered(projection->weight_placement(), projection->weight_quantizer()->alpha());
    ActivationQuantizer* input = projection->input_quantizer();
    if (!input || !input->has_global()) continue;
    state["alpha/" + projection->spec().input_name] = gathered(projection->input_placement(), input->alpha());
    if (input->ref().defined()) state["ref/" + projection->spec().input_name] = gathered(projection->input_placement(), input->ref());
  }
  return state;
}

bool Decoder::of_other_stage(const std::string& name) const {
  const std::size_t at = name.find("layers.");
  if (mesh_.pp().alone() || at == std::string::npos) return false;
  const int64_t layer = std::strtoll(name.c_str() + at + 7, nullptr, 10);
  return layer < config_.layers && (layer < first_layer_ || layer >= first_layer_ + static_cast<int64_t>(layers_.size()));
}

void Decoder::load_quantizer_state(const std::map<std::string, at::Tensor>& state, const std::string& source) {
  at::NoGradGuard no_grad;
  std::vector<std::string> faults;
  std::set<std::string> used;
  const auto take = [&](const std::string& name, const at::Tensor& local, const std::shared_ptr<const ScalePlacement>& placement) -> at::Tensor {
    const auto found = state.find(name);
    if (found == state.end()) {
      faults.push_back("missing: " + name);
      return {};
    }
    used.insert(name);
    const std::vector<int64_t> shape = placement ? placement->whole() : local.sizes().vec();
    if (found->second.sizes().vec() != shape) {
      faults.push_back(fmt::format("{} has shape {}, expected {}", name, fmt::join(found->second.sizes(), "x"), fmt::join(shape, "x")));
      return {};
    }
    return placement ? placement->narrow(found->second) : found->second;
  };
  // First everything is checked, then copied: a refused state leaves the model as it was.
  std::vector<std::function<void()>> copies;
  const auto copy_later = [&](at::Tensor to, const at::Tensor& value) {
    if (value.defined()) copies.push_back([to, value]() mutable { to.copy_(value); });
  };
  for (Projection* projection : projections()) {
    if (!projection->quantized()) continue;
    const at::Tensor alpha = projection->weight_quantizer()->alpha();
    copy_later(alpha, take("alpha/" + projection->spec().name, alpha, projection->weight_placement()));
    ActivationQuantizer* input = projection->input_quantizer();
    if (!input || !input->has_global()) continue;
    const at::Tensor input_alpha = input->alpha();
    copy_later(input_alpha, take("alpha/" + projection->spec().input_name, input_alpha, projection->input_placement()));
    const at::Tensor ref = take("ref/" + projection->spec().input_name, input_alpha, projection->input_placement());
    if (ref.defined()) copies.push_back([input, ref, device = compute_.device] { input->set_ref(ref.to(device, at::kFloat).clone()); });
  }
  for (const auto& [name, value] : state)
    if (!used.count(name) && !of_other_stage(name)) faults.push_back("not known to this model and format: " + name);
  if (!faults.empty()) {
    const std::size_t shown = std::min<std::size_t>(faults.size(), 20);
    throw DataError(fmt::format("{}: the scales do not fit the model ({} faults):\n  {}\nhint: they must come from the same model, format and numerics",
                                source, faults.size(), fmt::join(faults.begin(), faults.begin() + shown, "\n  ")));
  }
  for (auto& copy : copies) copy();
  refresh();
}

}  // namespace scalewright
