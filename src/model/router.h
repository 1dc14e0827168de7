// Which experts a token goes to, and with what weight.
#pragma once
#include "model/config.h"
#include "ops/compute.h"

namespace scalewright {

struct Routing {
  at::Tensor expert;  // [T,k] int64
  at::Tensor weight;  // [T,k] compute.accurate(), differentiable in the input
};

/// A frozen router [E,H] in compute.accurate(). qwen3_moe: softmax over experts, top-k, renormalised on request. hy_v3: sigmoid scores,
/// chosen by score plus a frozen bias [E], renormalised, times router_scaling.
class Router {
 public:
  Router(const ModelConfig& config, const at::Tensor& weight_EH, const at::Tensor& bias_E, const Compute& compute);
  Routing route(const at::Tensor& x_TH) const;

 private:
  at::Tensor sigmoid(const at::Tensor& x) const;

  int64_t top_k_;
  bool sigmoid_, renormalise_;
  double scaling_;
  Compute compute_;
  at::Tensor weight_, bias_;
};

}  // namespace scalewright
