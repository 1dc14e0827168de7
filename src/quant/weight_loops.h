// The loops of a weight quantizer over the rows of a stacked weight, for any rule set.
#pragma once
#include "quant/weight_quantizer.h"
#include "quant/weight_scales.h"

namespace scalewright {

at::Tensor fake_quantize_weight(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK,
                                at::ScalarType out_dtype, const at::Tensor& into = {});

void add_weight_alpha_gradient(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK,
                               int64_t expert, int64_t row_begin, const at::Tensor& dw, at::Tensor& d_alpha);

QuantizedWeight quantize_weight(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK);

}  // namespace scalewright
