// Rotary position embedding (Su et al., 2021), rotate-half convention of transformers: pairs (i, i + D/2).
#pragma once
#include "ops/compute.h"

namespace scalewright {

/// cos and sin [T, D/2] in compute.accurate() for integer positions [T] and inverse frequencies [D/2] (float64), times
/// `attention_scaling` (yarn's factor, else 1).
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable make_rope_table(const Compute& compute, const at::Tensor& positions_T, const at::Tensor& inverse_frequencies,
                          double attention_scaling);

/// Rotates x [T, heads, D]; differentiable in x (the gradient is the inverse rotation times the scaling).
at::Tensor apply_rope(const at::Tensor& x_THD, const RopeTable& table);

}  // namespace scalewright
