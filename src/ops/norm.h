// RMSNorm (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.
#pragma once
#include "ops/compute.h"

namespace scalewright {

/// Differentiable in x, and in weight when it requires a gradient. x [..., H] in the compute dtype, weight [H].
/// Statistics in float32 (float64 for float64 input); the normalized value is rounded to x's dtype before the product,
/// as transformers does.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace scalewright
