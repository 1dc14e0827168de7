// The loops of an activation quantizer over tokens: scales are made from the tokens themselves at run time.
#pragma once
#include <vector>

#include "base/exact_sum.h"
#include "quant/weight_scales.h"

namespace scalewright {

/// How one call's tokens are quantized. Rows offsets[i]..offsets[i+1] are segment i; a two-level format has one global multiplier S
/// a segment.
struct ActivationScheme {
  TensorFormat format;
  Rules rules;
  std::vector<int64_t> offsets;
  std::vector<float> globals;
  at::Tensor row_amax = {};   // float32 [T]: of whole rows, where other ranks hold more columns of them; undefined: of what is here

  at::Tensor globals_device = {};   // float32 [segments] instead of `globals`, for tokens on a GPU

  bool two_level() const { return format.layout == ScaleLayout::kTwoLevelBlock; }
  /// Whether the straight-through estimator can drop a gradient: never for run-time scales of our numerics, where a token's own
  /// maximum is in range by construction.
  bool clips() const { return two_level() || rules != Rules::kDeploy; }
};

/// Fake-quantized x [T,K] in x's dtype.
at::Tensor fake_quantize_activation(const ActivationScheme& scheme, const at::Tensor& x_TK);

struct ActivationGradient {
  at::Tensor x;                 // [T,K], dy where in range
  std::vector<ExactSum> global; // by segment, the sum over tokens of d(loss)/dS (two-level); the LSQ factor is `factor`
  double factor = 1;
};
/// Without `want_global` the gradients of globals stay zero.
ActivationGradient activation_gradient(const ActivationScheme& scheme, const at::Tensor& x_TK, const at::Tensor& dy_TK, bool want_global);

/// Largest magnitude of each row of x [T,K], rounded to float32: [T].
at::Tensor row_maxima(const at::Tensor& x_TK);
/// Largest magnitude of rows begin..end of x [T,K], rounded to float32; 0 without rows; NaN when one is there.
float rows_amax(const at::Tensor& x_TK, int64_t begin, int64_t end);

}  // namespace scalewright
