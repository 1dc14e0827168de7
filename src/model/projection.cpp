#include "model/projection.h"

#include "base/error.h"
#include "model/collectives.h"
#include "model/grouped_linear.h"
#include "model/sharded_linear.h"

namespace scalewright {
namespace {

// Whether every value of `from` is a value of `to`, so that one copy serves products and quantizers.
bool holds_exactly(at::ScalarType from, at::ScalarType to) {
  return from == to || to == at::kDouble || (to == at::kFloat && from != at::kDouble);
}

WeightPart weight_part(const ProjectionPart& part) {
  if (part.cut == ProjectionPart::Cut::kExperts) return {};
  const bool columns = part.cut == ProjectionPart::Cut::kColumns;
  return {part.owners, columns ? part.holders : nullptr, columns ? part.whole_columns : 0};
}

}  // namespace

Projection::Projection(ProjectionSpec spec, ProjectionPlace place, at::Tensor weight_ENK, at::Tensor bias_EN, at::ScalarType stored_dtype, const Compute& compute)
    : spec_(std::move(spec)), place_(std::move(place)), stored_dtype_(stored_dtype), compute_(compute) {
  weight_ = weight_ENK.to(compute.device, compute.dtype);
  source_ = holds_exactly(stored_dtype, compute.dtype) ? weight_ : weight_ENK.to(compute.device);
  if (!bias_EN.defined()) return;
  const ProjectionPart& part = place_.part;
  const at::Tensor bias = part.shards ? part.shards->all_gather(bias_EN[0].contiguous(), part.shard_rows).unsqueeze(0) : bias_EN;
  bias_ = bias.to(compute.device, compute.dtype);
}

void Projection::add_format(const Format& format, const QuantPlan& plan) {
  if (plan.vllm_w4afp8_rounding && format.name == "w4afp8" && place_.part.cut == ProjectionPart::Cut::kColumns)
    throw UserError("quantize.w4afp8_rounding: vllm rounds by the largest scale of whole rows, which parallel.tp cuts\nhint: use tp 1 (ep, cp, dp and pp are free), or "
                    "parallel.deterministic: layout");
  Candidate candidate{&format, {}, {}, {}, {}, {}};
  candidate.weight = std::make_unique<WeightQuantizer>(spec_.name, format.weight, plan.numerics, source_, compute_, stored_dtype_, weight_part(place_.part));
  candidate.weight->set_vllm_w4afp8_rounding(plan.vllm_w4afp8_rounding && format.name == "w4afp8");
  if (format.activation) {
    candidate.input = std::make_unique<ActivationQuantizer>(spec_.input_name, *format.activation, plan.numerics, spec_.routed() ? place_.part.experts.size() : 0, compute_,
                                                            input_sharing());
    if (candidate.input->has_global() && plan.numerics == Numerics::kDeploy)
      candidate.input->alpha().set_requires_grad(plan.learn_activation_scales);
  }
  place_scales(candidate);
  if (compute_.deterministic) candidate.gradient = std::make_unique<RowSums>();
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

ActivationSharing Projection::input_sharing() const {
  if (!place_.mesh || place_.mesh->stage().alone()) return {};
  ActivationSharing sharing;
  sharing.all = &place_.mesh->stage();
  if (place_.part.cut == ProjectionPart::Cut::kColumns) sharing.columns = place_.part.holders;
  if (spec_.routed() && !place_.mesh->edp().alone()) sharing.experts = &place_.mesh->edp();
  return sharing;
}

/// This rank's columns of an input whose features are spread over tp in another way (by attention heads): where a group of scales
/// would be cut, its columns move to one rank.
at::Tensor Projection::own_columns(const at::Tensor& x_TK) const {
  if (place_.part.given_columns == place_.part.columns_of_ranks) return x_TK;
  const at::Tensor all = gather_rows(x_TK.t().contiguous(), *place_.part.holders, place_.part.given_columns);
  return all.narrow(0, place_.part.columns.begin, place_.part.columns.size()).t().contiguous();
}

at::Tensor Projection::multiply(const at::Tensor& x_TK, const std::vector<int64_t>& offsets, bool student) {
  const at::Tensor bias = place_.part.cut == ProjectionPart::Cut::kColumns ? at::Tensor() : bias_;   // once, after the sum
  if (place_.part.shards) {
    const WeightShards shards{place_.part.shards, place_.part.shard_rows};
    return student ? sharded_linear(compute_, shards, x_TK, student_weight(), bias, weight_quantizer(), source_, weight_quantizer()->alpha())
                   : sharded_linear(compute_, shards, x_TK, weight_, bias, nullptr, {}, {});
  }
  if (!student) return grouped_linear(compute_, x_TK, offsets, weight_, bias, nullptr, {}, {});
  return grouped_linear(compute_, x_TK, offsets, student_weight(), bias, weight_quantizer(), source_, weight_quantizer()->alpha());
}

at::Tensor Projection::canonical_product(const at::Tensor& x_tK, const RoutedRows& routed, bool student, const LayoutPtr& layout) {
  CanonicalCall call{compute_, place_.mesh, place_.part, layout, routed, nullptr, nullptr};
  if (!student) return canonical_linear(std::make_shared<CanonicalCall>(std::move(call)), x_tK, weight_, bias_, {}, {});
  call.quantizer = weight_quantizer();
  call.sums = candidates_[*active_].gradient.get();
  return canonical_linear(std::make_shared<CanonicalCall>(std::move(call)), x_tK, student_weight(), bias_, source_, weight_quantizer()->alpha());
}

void Projection::take_gradients() {
  if (!quantized()) return;
  at::Tensor& alpha = weight_quantizer()->alpha();
  // The rows of other dp ranks; the owners of experts have those of the whole batch already.
  alpha.mutable_grad() = candidates_[*active_].gradient->take(place_.mesh && !spec_.routed() ? &place_.mesh->dp() : nullptr, alpha);
  ActivationQuantizer* input = input_quantizer();
  if (input && input->has_global() && input->alpha().requires_grad()) input->alpha().mutable_grad() = input->take_gradient();
}

at::Tensor Projection::forward(const at::Tensor& x_TK, const RoutedRows& routed, Mode mode, const LayoutPtr& layout) {
  using Cut = ProjectionPart::Cut;
  const Cut cut = place_.part.cut;
  const bool student = quantized() && (mode == Mode::kStudent || mode == Mode::kWeightsOnly);
  ActivationQuantizer* input = input_quantizer();
  at::Tensor x = cut == Cut::kColumns ? own_columns(x_TK) : x_TK;
  if (mode == Mode::kCalibrate && input) input->observe(x);
  if (student && input && mode == Mode::kStudent) x = input->forward(x, routed.offsets);
  if (compute_.deterministic) return canonical_product(x, routed, student, layout);
  if (cut == Cut::kRows) x = gather_rows(x, *place_.part.holders, layout->tp_rows);
  at::Tensor y = multiply(x, routed.offsets, student);
  if (cut != Cut::kColumns) return y;
  y = sum_scatter_rows(y, *place_.part.holders, layout->tp_rows);
  return bias_.defined() ? y + bias_[0] : y;
}

std::vector<Trainable> Projection::trainables() {
  std::vector<Trainable> result;
  if (!quantized()) return result;
  result.push_back({spec_.name, weight_quantizer()->alpha(), Trainable::Kind::kWeightScale, 0, weight_placement()});
  ActivationQuantizer* input = input_quantizer();
  if (input && input->has_global() && input->alpha().requires_grad())
    result.push_back({spec_.input_name, input->alpha(), Trainable::Kind::kActivationScale, 0, input_placement()});
  return result;
}

void Projection::place_scales(Candidate& candidate) const {
  if (!place_.mesh || place_.mesh->stage().alone()) return;
  const TensorFormat& format = candidate.weight->format();
  const bool channel = format.layout == ScaleLayout::kChannel;
  const int64_t groups = channel ? 1 : spec_.columns / format.group;
  candidate.weight_placement = std::make_shared<ScalePlacement>(ScalePlacement::of_weight(place_.part, {spec_.experts, spec_.rows, groups}, channel));
  const bool by_expert = spec_.routed() && candidate.weight->numerics() == Numerics::kMcoreQad;
  candidate.input_placement = std::make_shared<ScalePlacement>(ScalePlacement::of_input(place_.part, {by_expert ? spec_.experts : 1}));
}

}  // namespace scalewright
