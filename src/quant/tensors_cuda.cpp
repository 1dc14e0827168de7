#include "quant/tensors_cuda.h"

#include "base/error.h"
#include "ops/element.h"
#include "ops/tensors_cuda.h"
#include "quant/quantize_cuda.h"

namespace scalewright::cuda {
namespace {

const float* floats_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

/// A view with the tensors that it points into.
struct WeightTable {
  at::Tensor ref, alpha, global, divisor, row_c;
  WeightView view;

  WeightTable(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alphas, const at::Tensor& w_ENK)
      : ref(scales.ref.contiguous()), alpha(alphas.detach().to(at::kFloat).contiguous()), global(scales.global), divisor(scales.divisor) {
    SW_CHECK(w_ENK.dim() == 3 && w_ENK.size(0) == ref.size(0) && w_ENK.size(1) == ref.size(1), "a weight of another shape than its scales");
    SW_CHECK(alpha.sizes() == ref.sizes(), "alpha has another shape than the reference scales");
    SW_CHECK(ref.device() == w_ENK.device() && alpha.device() == w_ENK.device(), "a weight's scales are on another device");
    const int64_t columns = w_ENK.size(2);
    view = {scheme.rules, scheme.format.layout == ScaleLayout::kTwoLevelBlock, scheme.vllm_w4afp8 && scheme.rules == Rules::kDeploy, scheme.one_level(),
            scheme.rounder(), floats_of(ref), floats_of(alpha), floats_of(global), floats_of(divisor), nullptr, w_ENK.size(1), columns,
            scheme.group(columns), ref.size(2)};
    if (!view.vllm_w4afp8 || view.two_level) return;
    row_c = at::empty({ref.size(0) * ref.size(1), 2}, ref.options());
    launch_vllm_row_c(view, row_c.size(0), row_c.mutable_data_ptr<float>(), stream_of(ref));
    view.row_c = floats_of(row_c);
  }
};

/// A view with the tensors that it points into.
struct ActivationTable {
  at::Tensor offsets, row_amax, globals;
  ActivationView view;

  ActivationTable(const ActivationScheme& scheme, const at::Tensor& x) : row_amax(scheme.row_amax), globals(scheme.globals_device) {
    const WeightScheme same{scheme.format, scheme.rules, at::kFloat};
    view = {scheme.rules == Rules::kDeploy, scheme.two_level(), static_cast<float>(scheme.format.qmax), same.rounder(), floats_of(row_amax), nullptr, nullptr,
            0, x.size(0), x.size(1)};
    if (!scheme.two_level()) return;
    SW_CHECK(scheme.format.group == kActivationBlock && x.size(1) % kActivationBlock == 0, "activation blocks of {} values", scheme.format.group);
    SW_CHECK(globals.defined() && globals.numel() + 1 == static_cast<int64_t>(scheme.offsets.size()), "multipliers for {} segments",
             static_cast<int64_t>(scheme.offsets.size()) - 1);
    offsets = at::tensor(scheme.offsets, at::kLong).to(x.device(), at::kLong, /*non_blocking=*/true);
    view.globals = floats_of(globals);
    view.offsets = offsets.const_data_ptr<int64_t>();
    view.segments = globals.numel();
  }
};

}  // namespace

at::Tensor group_amax(const at::Tensor& x, int64_t group) {
  const at::Tensor values = x.detach().contiguous();
  const int64_t count = group > 0 ? values.numel() / group : 0;
  at::Tensor largest = at::empty({count}, values.options().dtype(at::kFloat));
  launch_group_amax(element_of(values, "a quantized tensor"), data_of(values), count, group, largest.mutable_data_ptr<float>(), stream_of(values));
  return largest;
}

at::Tensor fake_quantize_weight(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK,
                                at::ScalarType out_dtype) {
  const at::Tensor w = w_ENK.detach().contiguous();
  at::Tensor out = at::empty(w.sizes(), w.options().dtype(out_dtype));
  if (w.numel() == 0) return out;
  const WeightTable table(scheme, scales, alpha, w);
  launch_fake_quantize_weight(table.view, element_of(w, "a weight"), data_of(w), element_of(out, "a fake-quantized weight"), out.mutable_data_ptr(),
                              w.size(0) * w.size(1), stream_of(w));
  return out;
}

void add_weight_alpha_gradient(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK,
                               int64_t first_row, const at::Tensor& dw, at::Tensor& d_alpha) {
  const at::Tensor w = w_ENK.detach().contiguous(), gradient = dw.detach().contiguous();
  SW_CHECK(gradient.dim() == 2 && gradient.size(1) == w.size(2), "dW has {} columns, the weight {}", gradient.size(-1), w.size(2));
  SW_CHECK(first_row >= 0 && first_row + gradient.size(0) <= w.size(0) * w.size(1), "rows {}.. of a weight of {}", first_row, w.size(0) * w.size(1));
  SW_CHECK(d_alpha.sizes() == alpha.sizes() && d_alpha.is_contiguous(), "d_alpha must be contiguous and shaped as alpha");
  SW_CHECK(d_alpha.scalar_type() == (gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat), "d_alpha in {} from dW in {}",
           c10::toString(d_alpha.scalar_type()), c10::toString(gradient.scalar_type()));
  if (gradient.numel() == 0) return;
  const WeightTable table(scheme, scales, alpha, w);
  const double factor = 1.0 / std::sqrt(static_cast<double>(scheme.elements(w.size(2))) * scheme.format.qmax);
  launch_weight_alpha_gradient(table.view, element_of(w, "a weight"), data_of(w), element_of(gradient, "dW"), data_of(gradient), factor,
                               d_alpha.mutable_data_ptr(), first_row, gradient.size(0), stream_of(w));
}

at::Tensor activation_globals(bool deploy, const at::Tensor& ref, const at::Tensor& alpha) {
  const at::Tensor r = ref.detach().to(at::kFloat).contiguous(), a = alpha.detach().to(at::kFloat).contiguous();
  SW_CHECK(r.sizes() == a.sizes() && r.device() == a.device(), "{} references with {} alphas", r.numel(), a.numel());
  at::Tensor globals = at::empty_like(r);
  launch_activation_globals(deploy, floats_of(r), floats_of(a), r.numel(), globals.mutable_data_ptr<float>(), stream_of(r));
  return globals;
}

at::Tensor fake_quantize_activation(const ActivationScheme& scheme, const at::Tensor& x_TK) {
  const at::Tensor x = x_TK.detach().contiguous();
  at::Tensor out = at::empty_like(x);
  if (x.numel() == 0) return out;
  const ActivationTable table(scheme, x);
  launch_fake_quantize_activation(table.view, element_of(x, "an activation"), data_of(x), out.mutable_data_ptr(), stream_of(x));
  return out;
}

ActivationGradients activation_gradient(const ActivationScheme& scheme, const at::Tensor& x_TK, const at::Tensor& dy_TK, const at::Tensor& alpha,
                                        const at::Tensor& ref) {
  const at::Tensor x = x_TK.detach().contiguous(), dy = dy_TK.detach().contiguous();
  SW_CHECK(x.scalar_type() == dy.scalar_type() && x.sizes() == dy.sizes(), "a gradient in {} of an activation in {}", c10::toString(dy.scalar_type()),
           c10::toString(x.scalar_type()));
  ActivationGradients result{at::empty_like(x), {}};
  const bool want_alpha = scheme.two_level() && alpha.defined() && alpha.requires_grad();
  if (want_alpha) result.alpha = at::zeros(alpha.sizes(), alpha.options().requires_grad(false));
  if (x.numel() == 0) return result;
  const ActivationTable table(scheme, x);
  at::Tensor terms = want_alpha ? at::empty({x.size(0), x.size(1) / kActivationBlock}, x.options().dtype(at::kDouble)) : at::Tensor();
  launch_activation_gradient(table.view, element_of(x, "an activation"), data_of(x), data_of(dy), result.x.mutable_data_ptr(),
                             want_alpha ? terms.mutable_data_ptr<double>() : nullptr, stream_of(x));
  if (!want_alpha) return result;
  const at::Tensor alphas = alpha.detach().to(at::kFloat).contiguous(), refs = ref.detach().to(at::kFloat).contiguous();
  at::Tensor by_row = at::empty({x.size(0)}, terms.options()), gradient = at::empty(alpha.sizes(), terms.options());
  const double factor = 1.0 / std::sqrt(static_cast<double>(scheme.format.group) * scheme.format.qmax);
  launch_global_gradient(table.view, terms.const_data_ptr<double>(), by_row.mutable_data_ptr<double>(), floats_of(refs), floats_of(alphas), factor,
                         gradient.mutable_data_ptr<double>(), stream_of(x));
  result.alpha = gradient.to(alpha.scalar_type());
  return result;
}

}  // namespace scalewright::cuda
