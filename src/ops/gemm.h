// The one matrix-product function. Everything that multiplies matrices calls it, so that determinism, padding, packing
// and low-bit arithmetic have one home.
#pragma once
#include "ops/compute.h"

namespace scalewright {

enum class Transpose { kNo, kYes };

/// op(a) [M,K] times op(b) [K,N] -> [M,N] in the dtype of `a` (both operands share dtype and device; strides may be any
/// 2-D). With compute.deterministic a result row depends neither on M nor on the other rows, and the sum over K runs in
/// fixed blocks of kDeterministicBlockK in ascending order. Differentiable in both operands.
at::Tensor matmul(const Compute& compute, const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb);

/// The same into `out` [M,N], which may be a slice of rows of a larger tensor; no gradient.
void matmul_out(const Compute& compute, const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb,
                at::Tensor& out);

inline constexpr int64_t kDeterministicBlockK = 64;

/// y = x W^T: [T,K] x [N,K] -> [T,N].
inline at::Tensor matmul_nt(const Compute& c, const at::Tensor& x_TK, const at::Tensor& w_NK) {
  return matmul(c, x_TK, Transpose::kNo, w_NK, Transpose::kYes);
}
/// dX = dY W: [T,N] x [N,K] -> [T,K].
inline at::Tensor matmul_nn(const Compute& c, const at::Tensor& dy_TN, const at::Tensor& w_NK) {
  return matmul(c, dy_TN, Transpose::kNo, w_NK, Transpose::kNo);
}
/// dW = dY^T X: [T,N] x [T,K] -> [N,K].
inline at::Tensor matmul_tn(const Compute& c, const at::Tensor& dy_TN, const at::Tensor& x_TK) {
  return matmul(c, dy_TN, Transpose::kYes, x_TK, Transpose::kNo);
}

}  // namespace scalewright
