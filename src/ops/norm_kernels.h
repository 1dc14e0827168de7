// RMSNorm on the CPU (in CUDA builds also on GPUs, see tensors_cuda.h), without autograd.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

namespace scalewright {

/// x [..., H], weight [H] -> (y like x, contiguous; 1/sqrt(mean(x^2) + eps) [rows] in the accurate type).
std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);

/// -> (dx like x, dweight [H]), each only if wanted. With xhat = x * rstd and g = dy * weight: dx = rstd * (g - xhat *
/// mean(g * xhat)); dweight sums dy * xhat over rows in fixed chunks.
std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& rstd, bool want_dx, bool want_dweight);

}  // namespace scalewright
