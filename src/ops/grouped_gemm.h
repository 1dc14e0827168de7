// One call for the products of all experts, by ATen's grouped matrix product, where it has a fast one.
#pragma once
#include <vector>

#include "ops/compute.h"

namespace scalewright {

/// Whether grouped products of x [T,K] with w [E,N,K] go in one call: bfloat16 on a GPU, rows of whole 16 bytes, more than one expert,
/// nothing deterministic asked for.
bool has_grouped_products(const Compute& compute, const at::Tensor& x_TK, const at::Tensor& w_ENK);

/// Rows offsets[e]..offsets[e+1] belong to expert e. -> [T,N], row by row x w[e]^T. Any device and dtype that ATen's product takes.
at::Tensor grouped_nt(const at::Tensor& x_TK, const std::vector<int64_t>& offsets, const at::Tensor& w_ENK);
/// dy [T,N] -> [T,K], row by row dy w[e].
at::Tensor grouped_nn(const at::Tensor& dy_TN, const std::vector<int64_t>& offsets, const at::Tensor& w_ENK);
/// dy [T,N], x [T,K] -> [E,N,K], dy_e^T x_e; zeros for experts without rows.
at::Tensor grouped_tn(const at::Tensor& dy_TN, const std::vector<int64_t>& offsets, const at::Tensor& x_TK);

}  // namespace scalewright
