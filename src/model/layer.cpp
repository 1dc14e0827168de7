#include "model/layer.h"
#include <torch/csrc/autograd/custom_function.h>

#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "ops/norm.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Holds a layout as long as a graph needs it.
struct KeptLayout : torch::CustomClassHolder {
  explicit KeptLayout(LayoutPtr l) : layout(std::move(l)) {}
  LayoutPtr layout;
};

// Activation recompute: forward without a graph; backward runs the layer again with one. One of the layer's scales is passed as an
// input (a list of tensors would not count as inputs) so that the node exists when nothing else requires a gradient, as in the first
// layer; the scales' gradients reach them in the inner backward.
struct Recompute : Function<Recompute> {
  struct Arguments {
    Layer* layer;
    LayoutPtr layout;
    RopeTable rope;
    Mode mode;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>&, const Arguments& arguments) {
    context->save_for_backward({x, arguments.rope.cos, arguments.rope.sin});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(arguments.layer);
    context->saved_data["layout"] = c10::IValue::make_capsule(c10::make_intrusive<KeptLayout>(arguments.layout));
    context->saved_data["mode"] = static_cast<int64_t>(arguments.mode);
    return arguments.layer->forward(x, arguments.layout, arguments.rope, arguments.mode, nullptr);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto* layer = reinterpret_cast<Layer*>(context->saved_data["layer"].toInt());
    at::AutoGradMode with_grad(true);
    at::Tensor x = saved[0].detach().requires_grad_(true);
    const auto kept = c10::static_intrusive_pointer_cast<KeptLayout>(context->saved_data["layout"].toCapsule());
    const at::Tensor y = layer->forward(x, kept->layout, {saved[1], saved[2]},
                                        static_cast<Mode>(context->saved_data["mode"].toInt()), nullptr);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Layer::Layer(const ModelConfig& config, const ModelWeights& weights, int64_t index, const std::vector<ProjectionSpec>& specs, const Compute& compute,
             const Mesh& mesh, int64_t unit)
    : eps_(config.norm_eps) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  auto counted = [&](const at::Tensor& x) {
    parameters_ += x.defined() ? x.numel() : 0;
    return x;
  };
  auto norm = [&](const char* name) { return counted(weights.tensor(prefix + name).to(compute.device, compute.dtype)); };
  auto projection = [&](Place place) {
    const auto spec = std::find_if(specs.begin(), specs.end(), [&](const ProjectionSpec& s) { return s.layer == index && s.place == place; });
    SW_CHECK(spec != specs.end(), "layer {} has no projection of place {}", index, static_cast<int>(place));
    const ProjectionPart part = projection_part(config, *spec, mesh, unit, compute.deterministic);
    return std::make_unique<Projection>(*spec, ProjectionPlace{part, &mesh}, counted(weights.stacked(*spec, part)),
                                        counted(weights.stacked_bias(*spec, part)), weights.dtype(), compute);
  };
  input_norm_ = norm("input_layernorm.weight");
  post_attention_norm_ = norm("post_attention_layernorm.weight");
  at::Tensor q_norm, k_norm;
  if (config.qk_norm) {
    q_norm = norm("self_attn.q_norm.weight");
    k_norm = norm("self_attn.k_norm.weight");
  }
  attention_ = std::make_unique<AttentionBlock>(config, mesh, projection(Place::kQkv), projection(Place::kO), q_norm, k_norm, compute);
  if (!config.sparse.at(static_cast<std::size_t>(index))) {
    mlp_ = std::make_unique<DenseMlp>(projection(Place::kGateUp), projection(Place::kDown));
    return;
  }
  const std::string bias = prefix + "mlp.expert_bias";
  Router router(config, counted(weights.tensor(prefix + "mlp.gate.weight")), counted(weights.has(bias) ? weights.tensor(bias) : at::Tensor()), compute);
  std::unique_ptr<DenseMlp> shared;
  if (config.shared_experts > 0) shared = std::make_unique<DenseMlp>(projection(Place::kSharedGateUp), projection(Place::kSharedDown));
  mlp_ = std::make_unique<MoeMlp>(std::move(router), mesh, projection(Place::kExpertGateUp), projection(Place::kExpertDown), std::move(shared));
}

at::Tensor Layer::feed_forward(const at::Tensor& x_tH, Mode mode, const LayoutPtr& layout) {
  const at::Tensor h = rms_norm(x_tH, post_attention_norm_, eps_);
  return x_tH + std::visit([&](auto& mlp) { return mlp->forward(h, mode, layout); }, mlp_);
}

at::Tensor Layer::forward(const at::Tensor& x_tH, const LayoutPtr& layout, const RopeTable& rope, Mode mode, LayerCache* fill) {
  return feed_forward(x_tH + attention_->forward(rms_norm(x_tH, input_norm_, eps_), layout, rope, mode, fill), mode, layout);
}

at::Tensor Layer::step(const at::Tensor& x_BH, const std::vector<int64_t>& lengths, const RopeTable& rope, Mode mode, LayerCache cache) {
  return feed_forward(x_BH + attention_->step(rms_norm(x_BH, input_norm_, eps_), lengths, rope, mode, cache), mode, TokenLayout::of_step(x_BH.size(0)));
}

at::Tensor Layer::forward_recomputed(const at::Tensor& x_tH, const LayoutPtr& layout, const RopeTable& rope, Mode mode) {
  std::vector<Projection*> all;
  collect(all);
  std::optional<at::Tensor> scale;
  for (Projection* projection : all)
    for (const Trainable& trainable : projection->trainables()) scale = trainable.tensor;
  return Recompute::apply(x_tH, scale, Recompute::Arguments{this, layout, rope, mode});
}

void Layer::collect(std::vector<Projection*>& projections) {
  attention_->collect(projections);
  std::visit([&](auto& mlp) { mlp->collect(projections); }, mlp_);
}

}  // namespace scalewright
