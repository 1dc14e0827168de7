// The quantizers' loops on CUDA tensors: as the functions of the same names in weight_loops.h and activation_loops.h. Work is queued on
// the current stream of the tensors' device; nothing waits for it.
#pragma once
#include "quant/activation_loops.h"
#include "quant/weight_scales.h"

namespace scalewright::cuda {

/// float32 [numel / group]: the largest magnitude of each `group` neighbours.
at::Tensor group_amax(const at::Tensor& x, int64_t group);

/// `scales` and `alpha` on the weight's device.
at::Tensor fake_quantize_weight(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK,
                                at::ScalarType out_dtype);

/// Rows first_row.. of [E*N]; `dw` [rows, K] may cover several experts. d_alpha is float64 when dw is, else float32.
void add_weight_alpha_gradient(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK,
                               int64_t first_row, const at::Tensor& dw, at::Tensor& d_alpha);

/// The multipliers of NVFP4 activations, float32 like ref, on its device.
at::Tensor activation_globals(bool deploy, const at::Tensor& ref, const at::Tensor& alpha);

/// The scheme's multipliers are in globals_device.
at::Tensor fake_quantize_activation(const ActivationScheme& scheme, const at::Tensor& x_TK);

struct ActivationGradients {
  at::Tensor x;       // [T,K]
  at::Tensor alpha;   // as alpha; undefined when it needs no gradient
};
ActivationGradients activation_gradient(const ActivationScheme& scheme, const at::Tensor& x_TK, const at::Tensor& dy_TK, const at::Tensor& alpha,
                                        const at::Tensor& ref);

}  // namespace scalewright::cuda
