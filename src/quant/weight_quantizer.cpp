#include "quant/weight_quantizer.h"

#include "base/error.h"
#include "quant/rows.h"
#include "quant/weight_loops.h"
#include "quant/weight_scales.h"

namespace scalewright {
namespace {

Rules rules_of(Numerics numerics) { return numerics == Numerics::kDeploy ? Rules::kDeploy : Rules::kPeerEager; }

}  // namespace

WeightQuantizer::WeightQuantizer(const std::string& name, const TensorFormat& format, Numerics numerics, const at::Tensor& w_ENK,
                                 const Compute& compute, at::ScalarType scale_dtype, const WeightPart& part)
    : name_(name), format_(format), numerics_(numerics), compute_(compute), scale_dtype_(scale_dtype), whole_columns_(part.whole_columns) {
  const ReferenceScales scales = reference_scales(scheme(), w_ENK.detach(), name, part.holders, part.columns);
  ref_ = scales.ref;
  global_ = scales.global;
  divisor_ = scales.divisor;
  alpha_ = at::ones(ref_.sizes(), compute.accurate_options()).requires_grad_(true);
}

WeightScheme WeightQuantizer::scheme() const { return {format_, rules_of(numerics_), scale_dtype_, vllm_w4afp8_, whole_columns_}; }

at::Tensor WeightQuantizer::fake_quantize(const at::Tensor& w_ENK, at::ScalarType out_dtype) const {
  return fake_quantize_weight(scheme(), {ref_, global_, divisor_}, alpha_, w_ENK, out_dtype);
}

void WeightQuantizer::add_alpha_gradient(const at::Tensor& w_ENK, int64_t expert, int64_t row_begin, const at::Tensor& dw,
                                         at::Tensor& d_alpha) const {
  add_weight_alpha_gradient(scheme(), {ref_, global_, divisor_}, alpha_, w_ENK, expert, row_begin, dw, d_alpha);
}

QuantizedWeight WeightQuantizer::quantize(const at::Tensor& w_ENK) const {
  SW_CHECK(numerics_ == Numerics::kDeploy, "{}: only deploy numerics choose codes for a loader", name_);
  return quantize_weight(scheme(), {ref_, global_, divisor_}, alpha_, w_ENK);
}

}  // namespace scalewright
