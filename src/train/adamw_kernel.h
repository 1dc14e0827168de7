// AdamW's update, one pass over the elements.
#pragma once
#include <ATen/core/Tensor.h>

namespace scalewright {

/// With g' = factor g: p *= decay; m = beta1 m + (1-beta1) g'; v = beta2 v + (1-beta2) g'^2; p -= rate m / (sqrt(v) root + eps).
struct AdamWUpdate {
  double factor, decay, beta1, beta2, rate, root, eps;   // root: 1/sqrt(1-beta2^t); rate: lr/(1-beta1^t)
};

/// All of one dtype (float32 or float64), contiguous, of equal size, on the CPU. An element's result depends on nothing but its own values.
void adamw_update_cpu(const AdamWUpdate& update, at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v);

}  // namespace scalewright
