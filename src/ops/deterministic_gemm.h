// The layout-independent matrix product on the CPU.
#pragma once
#include <ATen/core/Tensor.h>

namespace scalewright {

/// out [M,N] (rows contiguous in themselves) = a [M,K] times b [K,N], one dtype, any strides; no gradient. Products and
/// sums in float32 (float64 for float64). For every element: partial sums over ascending blocks of kDeterministicBlockK
/// of K, each by fused multiply-adds in ascending order from 0, added up in ascending order of the blocks and rounded
/// to the dtype at the end.
void deterministic_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);

}  // namespace scalewright
