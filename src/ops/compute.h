// Where and in which precision the numbers are computed. Passed by value; no module keeps a global choice.
#pragma once
#include <ATen/core/Tensor.h>

namespace scalewright {

struct Compute {
  at::ScalarType dtype = at::kFloat;  // of activations and of matrix products: kDouble, kFloat or kBFloat16
  at::Device device = at::kCPU;
  bool deterministic = false;  // `deterministic: layout`: fixed K blocks, batch-invariant products

  /// dtype of norms, softmax, losses, scales and alphas: float64 when everything is, else float32.
  at::ScalarType accurate() const { return dtype == at::kDouble ? at::kDouble : at::kFloat; }
  at::TensorOptions options() const { return at::TensorOptions().dtype(dtype).device(device); }
  at::TensorOptions accurate_options() const { return at::TensorOptions().dtype(accurate()).device(device); }
};

}  // namespace scalewright
