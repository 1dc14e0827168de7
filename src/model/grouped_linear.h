// The matrix product of a stacked weight, with the gradient of its scales reduced tile by tile.
#pragma once
#include <vector>

#include "ops/compute.h"
#include "quant/weight_quantizer.h"

namespace scalewright {

/// y[t] = W[e(t)] x[t] + b[e(t)]: x [T,K] (rows of expert e are offsets[e] .. offsets[e+1]-1), w [E,N,K] in x's dtype, bias [E,N] or
/// undefined -> [T,N]. Differentiable in x. With `quantizer` (whose fake-quantized weight `w` is, made from `source` [E,N,K]) it is
/// differentiable in `alpha` too: dW exists one tile of rows at a time and is reduced at once to d(alpha). `quantizer` and `source`
/// must outlive the graph. With an undefined alpha no dW is computed.
at::Tensor grouped_linear(const Compute& compute, const at::Tensor& x_TK, const std::vector<int64_t>& offsets, const at::Tensor& w_ENK,
                          const at::Tensor& bias_EN, const WeightQuantizer* quantizer, const at::Tensor& source_ENK, const at::Tensor& alpha);

/// Its parts, without a graph: W x + b, W^T dy, and the gradient that `quantizer` takes from dW = dy^T x, added to d_alpha.
at::Tensor grouped_product(const Compute& compute, const at::Tensor& x_TK, const std::vector<int64_t>& offsets, const at::Tensor& w_ENK,
                           const at::Tensor& bias_EN);
at::Tensor grouped_input_gradient(const Compute& compute, const at::Tensor& dy_TN, const std::vector<int64_t>& offsets, const at::Tensor& w_ENK);
void add_alpha_gradients(const Compute& compute, const WeightQuantizer& quantizer, const at::Tensor& dy_TN, const at::Tensor& x_TK,
                         const std::vector<int64_t>& offsets, const at::Tensor& source_ENK, at::Tensor& d_alpha);

}  // namespace scalewright
