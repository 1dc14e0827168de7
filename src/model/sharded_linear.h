// A dense linear whose weight is spread over the ranks that have other tokens (parallel.shard_dense).
#pragma once
#include "comm/group.h"
#include "ops/compute.h"
#include "quant/weight_quantizer.h"

namespace scalewright {

/// Rows of the weight that each rank of `group` holds.
struct WeightShards {
  const Group* group;
  std::vector<int64_t> rows;
};

/// y = W x + b: x [T,K] -> [T,n], where this rank holds rows [1,n_r,K] of W [1,n,K], and all of `bias` [1,n] (or undefined). The whole weight
/// exists during a product only; it is gathered again in backward. With `quantizer` (whose fake-quantized weight `w` is, made from `source`)
/// differentiable in `alpha` [1,n_r,K/g] too: dW is summed over the ranks, each keeping its rows, so alpha's gradient is that of all ranks'
/// tokens. All ranks of the group must call it, in backward too.
at::Tensor sharded_linear(const Compute& compute, const WeightShards& shards, const at::Tensor& x_TK, const at::Tensor& w, const at::Tensor& bias,
                          const WeightQuantizer* quantizer, const at::Tensor& source, const at::Tensor& alpha);

}  // namespace scalewright
