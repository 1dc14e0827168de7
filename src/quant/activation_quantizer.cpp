#include "quant/activation_quantizer.h"

#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "comm/exact_sums.h"
#include "ops/cuda_build.h"
#include "quant/activation_loops.h"
#include "quant/tensors_cuda.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

using scale_rules::kPeerFloor;
using scale_rules::kTwoLevelSpan;

std::vector<float> to_floats(const at::Tensor& t) {
  const at::Tensor f = t.detach().to(at::kCPU, at::kFloat).contiguous();
  return {f.const_data_ptr<float>(), f.const_data_ptr<float>() + f.numel()};
}

/// The largest value of all ranks of `group`.
float shared_maximum(float value, const Group* group) {
  if (!group) return value;
  at::Tensor shared = at::full({1}, value, at::kFloat);
  group->all_reduce(shared, Reduce::kMax);
  return shared.item<float>();
}

/// d(alpha) from the sums of d(loss)/dS: S = ref * clamp(alpha).
at::Tensor global_gradient(Rules rules, const std::vector<ExactSum>& by_global, const at::Tensor& alpha, const at::Tensor& ref, double factor) {
  if (!alpha.defined() || !alpha.requires_grad()) return {};
  const std::vector<float> alphas = to_floats(alpha), refs = to_floats(ref);
  const at::Tensor result = at::zeros(alpha.sizes(), at::kDouble);
  for (std::size_t i = 0; i < alphas.size(); ++i)
    if (clamped_alpha(rules, alphas[i]).pass) result.mutable_data_ptr<double>()[i] = by_global[i] * factor * refs[i];
  return result.to(alpha.options().requires_grad(false));
}

/// Straight-through in x; the gradient of alpha comes from the globals S = ref * clamp(alpha).
struct FakeQuantizeActivation : Function<FakeQuantizeActivation> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& alpha,
                            const std::optional<at::Tensor>& ref, const ActivationScheme& scheme, std::vector<ExactSum>* sums) {
    auto& data = context->saved_data;
    data["clips"] = scheme.clips();
    data["sums"] = reinterpret_cast<int64_t>(sums);   // quantizers outlive every graph
    if (scheme.clips()) {
      context->save_for_backward({x, alpha.value_or(at::Tensor()), ref.value_or(at::Tensor()), scheme.row_amax, scheme.globals_device});
      data["grid"] = static_cast<int64_t>(scheme.format.grid);
      data["layout"] = static_cast<int64_t>(scheme.format.layout);
      data["group"] = scheme.format.group;
      data["qmax"] = scheme.format.qmax;
      data["rules"] = static_cast<int64_t>(scheme.rules);
      data["offsets"] = scheme.offsets;
      data["globals"] = std::vector<double>(scheme.globals.begin(), scheme.globals.end());
    }
    return fake_quantize_activation(scheme, x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!context->saved_data["clips"].toBool()) return {gradients[0], {}, {}, {}, {}};
    const auto saved = context->get_saved_variables();
    ActivationScheme scheme = saved_scheme(context);
    scheme.row_amax = saved[3];
    scheme.globals_device = saved[4];
    if constexpr (kCudaBuild) {
      if (saved[0].is_cuda()) {
        const cuda::ActivationGradients on_device = cuda::activation_gradient(scheme, saved[0], gradients[0], saved[1], saved[2]);
        return {on_device.x, on_device.alpha, {}, {}, {}};
      }
    }
    const ActivationGradient gradient = activation_gradient(scheme, saved[0], gradients[0], saved[1].defined() && saved[1].requires_grad());
    auto* sums = reinterpret_cast<std::vector<ExactSum>*>(context->saved_data["sums"].toInt());
    if (!sums || !saved[1].defined()) return {gradient.x, global_gradient(scheme.rules, gradient.global, saved[1], saved[2], gradient.factor), {}, {}, {}};
    sums->resize(gradient.global.size());
    for (std::size_t i = 0; i < sums->size(); ++i) (*sums)[i] += gradient.global[i];
    return {gradient.x, {}, {}, {}, {}};
  }

 private:
  static ActivationScheme saved_scheme(AutogradContext* context) {
    auto& data = context->saved_data;
    const TensorFormat format{static_cast<Grid>(data["grid"].toInt()), static_cast<ScaleLayout>(data["layout"].toInt()), data["group"].toInt(),
                              data["qmax"].toDouble()};
    const auto globals = data["globals"].toDoubleVector();
    return {format, static_cast<Rules>(data["rules"].toInt()), data["offsets"].toIntVector(), std::vector<float>(globals.begin(), globals.end())};
  }
};

}  // namespace

ActivationQuantizer::ActivationQuantizer(const std::string& name, const TensorFormat& format, Numerics numerics, int64_t experts,
                                         const Compute& compute, const ActivationSharing& sharing)
    : name_(name), format_(format), numerics_(numerics), experts_(experts), compute_(compute), sharing_(sharing) {
  if (!has_global()) return;
  const bool learned = numerics == Numerics::kMcoreQad;
  alpha_ = at::ones({learned ? experts : 1}, compute.accurate_options()).requires_grad_(learned);
}

bool ActivationQuantizer::has_global() const {
  return format_.layout == ScaleLayout::kTwoLevelBlock && (numerics_ == Numerics::kDeploy || experts_ > 0);
}

at::Tensor ActivationQuantizer::forward(const at::Tensor& x_TK, const std::vector<int64_t>& offsets) {
  const int64_t group = format_.group ? format_.group : x_TK.size(1);
  if (group > 0 && x_TK.size(1) % group != 0)
    throw DataError(fmt::format("{}: {} input features are not a multiple of the format's block of {}", name_, x_TK.size(1), group));
  ActivationScheme scheme{format_, numerics_ == Numerics::kDeploy ? Rules::kDeploy : Rules::kPeerEager, {0, x_TK.size(0)}, {}};
  if (scheme.two_level()) {
    if (numerics_ == Numerics::kMcoreQad && experts_ > 0) {
      SW_CHECK(static_cast<int64_t>(offsets.size()) == experts_ + 1 && offsets.back() == x_TK.size(0), "{}: offsets do not fit", name_);
      scheme.offsets = offsets;
      if (!ref_.defined()) ref_ = first_references(x_TK, offsets);
    }
    set_globals(scheme, x_TK);
  } else if (sharing_.columns) {
    scheme.row_amax = row_maxima(x_TK);
    sharing_.columns->all_reduce(scheme.row_amax, Reduce::kMax);
  }
  if (x_TK.numel() == 0) return x_TK;   // only here: the others wait for this rank's maxima
  const auto given = [](const at::Tensor& t) { return t.defined() ? std::make_optional(t) : std::nullopt; };
  return FakeQuantizeActivation::apply(x_TK, given(alpha_), given(ref_), scheme, compute_.deterministic ? &sums_ : nullptr);
}

void ActivationQuantizer::set_globals(ActivationScheme& scheme, const at::Tensor& x_TK) {
  const bool deploy = numerics_ == Numerics::kDeploy;
  if (!has_global()) {
    scheme.globals = {std::max(shared_maximum(rows_amax(x_TK, 0, x_TK.size(0)), sharing_.all) / kTwoLevelSpan, kPeerFloor)};
    if (!x_TK.is_cpu()) scheme.globals_device = at::full({1}, scheme.globals[0], x_TK.options().dtype(at::kFloat));
    return;
  }
  if constexpr (kCudaBuild) {
    if (x_TK.is_cuda()) {   // without a look at the values: nothing waits for the device
      check_known();
      ref_ = ref_.to(alpha_.device(), at::kFloat);
      scheme.globals_device = cuda::activation_globals(deploy, ref_, alpha_);
      return;
    }
  }
  if (!deploy) {
    scheme.globals = to_floats(global());
    return;
  }
  const std::vector<float> divisor = to_floats(exported_divisor());
  scheme.globals = {1.0f / divisor[0]};
}

at::Tensor ActivationQuantizer::take_gradient() {
  const Group* group = alpha_.numel() > 1 || numerics_ == Numerics::kMcoreQad ? sharing_.experts : sharing_.all;
  sums_.resize(static_cast<std::size_t>(alpha_.numel()));
  const std::vector<ExactSum> all = group ? add_up(*group, sums_) : sums_;
  sums_.clear();
  if (!ref_.defined()) return at::zeros_like(alpha_).detach();
  const double factor = 1.0 / std::sqrt(static_cast<double>(format_.group) * format_.qmax);
  return global_gradient(numerics_ == Numerics::kDeploy ? Rules::kDeploy : Rules::kPeerEager, all, alpha_, ref_, factor);
}

/// The peer's initial references: each expert's amax, or the whole batch's where an expert got no token.
at::Tensor ActivationQuantizer::first_references(const at::Tensor& x_TK, const std::vector<int64_t>& offsets) const {
  const float whole = shared_maximum(rows_amax(x_TK, 0, x_TK.size(0)), sharing_.all);
  at::Tensor amax = at::full({experts_}, -1.0f, at::kFloat);   // -1: no token
  for (int64_t e = 0; e < experts_; ++e)
    if (offsets[e] < offsets[e + 1]) amax[e] = rows_amax(x_TK, offsets[e], offsets[e + 1]);
  if (sharing_.experts) sharing_.experts->all_reduce(amax, Reduce::kMax);
  amax.masked_fill_(amax < 0, whole);
  return (amax / kTwoLevelSpan).clamp_min(kPeerFloor);
}

void ActivationQuantizer::observe(const at::Tensor& x_TK) {
  if (numerics_ != Numerics::kDeploy || !has_global()) return;
  if (x_TK.size(0) == 0) return;
  const float amax = rows_amax(x_TK, 0, x_TK.size(0));
  if (!std::isfinite(amax)) throw NonFiniteError(fmt::format("{}: an activation is not finite during calibration", name_));
  const at::Tensor seen = at::full({1}, amax / kTwoLevelSpan, at::kFloat);
  ref_ = ref_.defined() ? at::maximum(ref_.detach().to(at::kCPU), seen) : seen;
}

void ActivationQuantizer::share_observed() {
  if (numerics_ != Numerics::kDeploy || !has_global() || !sharing_.all) return;
  at::Tensor seen = ref_.defined() ? ref_.detach().to(at::kCPU).clone() : at::full({1}, -1.0f, at::kFloat);
  sharing_.all->all_reduce(seen, Reduce::kMax);
  ref_ = seen.item<float>() < 0 ? at::Tensor() : seen;
}

void ActivationQuantizer::check_known() const {
  SW_CHECK(has_global(), "{} has no global scale", name_);
  if (!ref_.defined())
    throw DataError(fmt::format("{}: no activation range is known\nhint: calibrate first (ptq --calib, quantize.calibration), or load the state of a calibrated run",
                                name_));
}

at::Tensor ActivationQuantizer::global() const {
  check_known();
  return ref_.detach().to(at::kCPU, at::kFloat) * alpha_.detach().to(at::kCPU, at::kFloat).clamp(kAlphaLow, kAlphaHigh);
}

at::Tensor ActivationQuantizer::exported_divisor() const {
  at::Tensor result = global().clone();
  for (float& value : std::span(result.mutable_data_ptr<float>(), static_cast<std::size_t>(result.numel())))
    value = value == 0.0f ? kTwoLevelSpan : nvfp4_divisor_of(value);   // 0: only zeros were seen
  return result;
}

}  // namespace scalewright
