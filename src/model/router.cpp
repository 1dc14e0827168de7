#include "model/router.h"

#include "model/grouped_linear.h"

namespace scalewright {

Router::Router(const ModelConfig& config, const at::Tensor& weight_EH, const at::Tensor& bias_E, const Compute& compute)
    : top_k_(config.top_k),
      sigmoid_(config.sigmoid_router),
      renormalise_(config.norm_topk_prob),
      scaling_(config.router_scaling),
      compute_{compute.accurate(), compute.device, compute.deterministic} {
  weight_ = weight_EH.to(compute.device, compute.accurate()).unsqueeze(0);
  if (bias_E.defined()) bias_ = bias_E.to(compute.device, compute.accurate());
}

/// ATen's sigmoid rounds the last few elements of a tensor in another way than the rest; a softmax over (x, 0) treats all alike.
at::Tensor Router::sigmoid(const at::Tensor& x) const {
  if (!compute_.deterministic) return at::sigmoid(x);
  return at::softmax(at::stack({x, at::zeros_like(x)}, -1), -1).select(-1, 0);
}

Routing Router::route(const at::Tensor& x_TH) const {
  const at::Tensor logits = grouped_linear(compute_, x_TH.to(compute_.dtype), {}, weight_, {}, nullptr, {}, {});
  const at::Tensor score = sigmoid_ ? sigmoid(logits) : at::softmax(logits, -1);
  Routing routing;
  {
    at::NoGradGuard no_grad;
    routing.expert = std::get<1>((bias_.defined() ? score + bias_ : score).topk(top_k_, -1));
  }
  routing.weight = score.gather(-1, routing.expert);
  // transformers guards only the sigmoid router's sum; a softmax's largest entries cannot sum to zero.
  if (sigmoid_) routing.weight = routing.weight / (routing.weight.sum(-1, true) + 1e-20);
  else if (renormalise_) routing.weight = routing.weight / routing.weight.sum(-1, true);
  if (scaling_ != 1.0) routing.weight = routing.weight * scaling_;
  return routing;
}

}  // namespace scalewright
