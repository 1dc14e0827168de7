// The row kernels of ops on CUDA tensors, without autograd: as the functions of the same names in permute_kernels.h, norm_kernels.h and
// rope_kernels.h. Work is queued on the current stream of the tensors' device; nothing waits for it.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

#include "ops/cuda_types.h"

namespace scalewright::cuda {

/// The current stream of the device of `t`.
cudaStream_t stream_of(const at::Tensor& t);
/// Throws UserError for any but float64, float32 and bfloat16.
Element element_of(const at::Tensor& t, const char* what);
/// The pointer to the first element, for reading; nullptr when undefined.
const void* data_of(const at::Tensor& t);

at::Tensor inverse_of(const at::Tensor& slot);
at::Tensor copy_rows(const at::Tensor& x, const at::Tensor& token);
at::Tensor sum_choices(const at::Tensor& y, const at::Tensor& weight_Tk, const at::Tensor& inverse, int64_t tokens);
at::Tensor scale_rows(const at::Tensor& dout, const at::Tensor& weight_Tk, const at::Tensor& token, const at::Tensor& slot);
at::Tensor choice_dots(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& weight_Tk, const at::Tensor& inverse);

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);
std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                                    bool want_dx, bool want_dweight);

/// [T, 2I] -> [T, I], and its gradient from dy [T, I].
at::Tensor swiglu_forward(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

at::Tensor rotate_half(const at::Tensor& x_THD, const at::Tensor& cos, const at::Tensor& sin, bool inverse);

}  // namespace scalewright::cuda
