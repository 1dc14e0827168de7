// Tokens sorted by expert, and back.
#pragma once
#include <vector>

#include "ops/compute.h"

namespace scalewright {

/// The (token, choice) pairs of a routing sorted by expert, stably, so that the order is a function of the routing
/// alone.
struct ExpertOrder {
  at::Tensor token;              // [T*k] int64: the source token of each sorted row
  at::Tensor slot;               // [T*k] int64: its index in the flattened [T, k] routing
  std::vector<int64_t> offsets;  // [E+1]: rows of expert e are offsets[e] .. offsets[e+1]-1
};
ExpertOrder sort_by_expert(const at::Tensor& expert_Tk, int64_t num_experts);

/// x [T,H] -> rows of x in sorted order [T*k, H]; differentiable (the gradient adds up per token in a fixed order).
at::Tensor gather_tokens(const at::Tensor& x_TH, const ExpertOrder& order);

/// y [T*k, H] (sorted rows) and routing weights [T,k] -> sum over choices of weight * y [T,H], in the dtype of y,
/// accumulated in float32 (float64) in the order of the choices; differentiable in both.
at::Tensor combine_tokens(const at::Tensor& y, const at::Tensor& weight_Tk, const ExpertOrder& order);

}  // namespace scalewright
