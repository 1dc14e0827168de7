#include "model/projection.h"

#include "base/error.h"
#include "model/grouped_linear.h"

namespace scalewright {
namespace {

// Whether every value of `from` is a value of `to`, so that one copy serves products and quantizers.
bool holds_exactly(at::ScalarType from, at::ScalarType to) {
  return from == to || to == at::kDouble || (to == at::kFloat && from != at::kDouble);
}

}  // namespace

Projection::Projection(ProjectionSpec spec, at::Tensor weight_ENK, at::Tensor bias_EN, at::ScalarType stored_dtype, const Compute& compute)
    : spec_(std::move(spec)), stored_dtype_(stored_dtype), compute_(compute) {
  weight_ = weight_ENK.to(compute.device, compute.dtype);
  source_ = holds_exactly(stored_dtype, compute.dtype) ? weight_ : weight_ENK.to(compute.device);
  if (bias_EN.defined()) bias_ = bias_EN.to(compute.device, compute.dtype);
}

void Projection::add_format(const Format& format, const QuantPlan& plan) {
  Candidate candidate{&format, nullptr, nullptr};
  candidate.weight = std::make_unique<WeightQuantizer>(spec_.name, format.weight, plan.numerics, source_, compute_, stored_dtype_);
  candidate.weight->set_vllm_w4afp8_rounding(plan.vllm_w4afp8_rounding && format.name == "w4afp8");
  if (format.activation) {
    candidate.input = std::make_unique<ActivationQuantizer>(spec_.input_name, *format.activation, plan.numerics, spec_.routed() ? spec_.experts : 0, compute_);
    if (candidate.input->has_global() && plan.numerics == Numerics::kDeploy)
      candidate.input->alpha().set_requires_grad(plan.learn_activation_scales);
  }
  candidates_.push_back(std::move(candidate));
  set_active(candidates_.size() - 1);
}

void Projection::set_active(std::optional<std::size_t> candidate) {
  SW_CHECK(!candidate || *candidate < candidates_.size(), "{}: candidate {} of {}", spec_.name, *candidate, candidates_.size());
  active_ = candidate;
  refresh();
}

const Format* Projection::format() const { return active_ ? candidates_[*active_].format : nullptr; }
WeightQuantizer* Projection::weight_quantizer() { return active_ ? candidates_[*active_].weight.get() : nullptr; }
const WeightQuantizer* Projection::weight_quantizer() const { return active_ ? candidates_[*active_].weight.get() : nullptr; }
ActivationQuantizer* Projection::input_quantizer() { return active_ ? candidates_[*active_].input.get() : nullptr; }

void Projection::refresh() { student_weight_ = at::Tensor(); }

const at::Tensor& Projection::student_weight() {
  SW_CHECK(quantized(), "{} is not quantized", spec_.name);
  if (!student_weight_.defined()) {
    at::NoGradGuard no_grad;
    student_weight_ = weight_quantizer()->fake_quantize(source_, compute_.dtype);
  }
  return student_weight_;
}

void Projection::set_student_weight(const at::Tensor& w_ENK) {
  SW_CHECK(quantized() && w_ENK.sizes() == weight_.sizes(), "{}: a student's weight of another shape", spec_.name);
  student_weight_ = w_ENK.to(compute_.device, compute_.dtype);
}

at::Tensor Projection::forward(const at::Tensor& x_TK, const std::vector<int64_t>& offsets, Mode mode) {
  ActivationQuantizer* input = input_quantizer();
  if (mode == Mode::kCalibrate && input) input->observe(x_TK);
  const bool student = quantized() && (mode == Mode::kStudent || mode == Mode::kWeightsOnly);
  if (!student) return grouped_linear(compute_, x_TK, offsets, weight_, bias_, nullptr, {}, {});
  const at::Tensor x = input && mode == Mode::kStudent ? input->forward(x_TK, offsets) : x_TK;
  return grouped_linear(compute_, x, offsets, student_weight(), bias_, weight_quantizer(), source_, weight_quantizer()->alpha());
}

std::vector<Trainable> Projection::trainables() {
  std::vector<Trainable> result;
  if (!quantized()) return result;
  result.push_back({spec_.name, weight_quantizer()->alpha(), Trainable::Kind::kWeightScale});
  ActivationQuantizer* input = input_quantizer();
  if (input && input->has_global() && input->alpha().requires_grad())
    result.push_back({spec_.input_name, input->alpha(), Trainable::Kind::kActivationScale});
  return result;
}

}  // namespace scalewright
