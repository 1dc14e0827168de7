// The rotation on the CPU (in CUDA builds also on GPUs, see tensors_cuda.h), without autograd.
#pragma once
#include <ATen/core/Tensor.h>

namespace scalewright {

/// x [T, heads, D], cos and sin [T, D/2] in the accurate type -> contiguous: (x1 cos - x2 sin, x2 cos + x1 sin) for the
/// halves x1, x2 of D; `inverse` turns the sign of sin, which is the gradient.
at::Tensor rotate_half(const at::Tensor& x_THD, const at::Tensor& cos, const at::Tensor& sin, bool inverse);

}  // namespace scalewright
