// Moves of token rows on the CPU (in CUDA builds also on GPUs, see tensors_cuda.h), without autograd. `inverse` [T*k]: the sorted row of each (token, choice).
#pragma once
#include <ATen/core/Tensor.h>

namespace scalewright {

/// x [T,H], token [R] -> [R,H].
at::Tensor copy_rows(const at::Tensor& x, const at::Tensor& token);
/// y [R,H], weight [T,k] (undefined: ones) -> sum over choices of weight * y[inverse] [T,H], accumulated in the
/// accurate type in order.
at::Tensor sum_choices(const at::Tensor& y, const at::Tensor& weight_Tk, const at::Tensor& inverse, int64_t tokens);
/// dout [T,H] -> dy [R,H] = weight[slot] * dout[token] in the dtype of dout.
at::Tensor scale_rows(const at::Tensor& dout, const at::Tensor& weight_Tk, const at::Tensor& token,
                      const at::Tensor& slot);
/// -> [T,k] in the dtype of weight: dot(dout[token], y[inverse]).
at::Tensor choice_dots(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& weight_Tk,
                       const at::Tensor& inverse);

}  // namespace scalewright
