// Causal attention over packed documents on the CPU, without autograd: blocks of queries against blocks of keys with a
// running softmax (Dao et al., "FlashAttention", 2022), products by block_gemm. A row's bits depend on its own document
// only.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "ops/attention_rows.h"

namespace scalewright {

inline constexpr int64_t kAttentionBlock = 64;  // queries and keys of a block

/// -> (out [Tq, Hq, D]; log of the sum of exponentials [Hq, Tq] in the accurate type).
std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const AttentionRows& rows, double scale);

struct AttentionGradients {
  at::Tensor dq, dk, dv;
};
/// With P = exp(scale q k^T - lse), D = sum(dout * out): dv = P^T dout, dS = P (dout v^T - D), dq = scale dS k, dk =
/// scale dS^T q.
AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                      const AttentionRows& rows, double scale);

/// One query a sequence against its cache; shapes as in attention_step.
at::Tensor attention_step_kernel(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                                 const std::vector<int64_t>& lengths, double scale);

}  // namespace scalewright
