// Causal grouped-query attention over packed documents.
#pragma once
#include <vector>

#include "ops/attention_rows.h"
#include "ops/compute.h"

namespace scalewright {

/// q [Tq, Hq, D], k and v [T, Hkv, D] (Hq a multiple of Hkv), all documents one after another; `rows` says which queries
/// are here: a token attends to itself and the earlier tokens of its document only. -> [Tq, Hq, D], each row with the
/// same bits whichever other queries are here. Softmax in float32 (float64 for float64). Differentiable in q, k, v; nothing of size T x T is kept
/// (recomputed in backward).
at::Tensor attention(const Compute& compute, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionRows& rows, double scale);

/// One new token per sequence against a cache, no gradient: q [B, Hq, D]; k_cache, v_cache [B, C, Hkv, D] with
/// `lengths[b]` valid positions (the new token's own included). -> [B, Hq, D].
at::Tensor attention_step(const Compute& compute, const at::Tensor& q, const at::Tensor& k_cache,
                          const at::Tensor& v_cache, const std::vector<int64_t>& lengths, double scale);

}  // namespace scalewright
