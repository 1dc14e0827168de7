// Weight and activation quantizers in every format: the same bits as on the CPU.
#include "comparison.h"
#include "quant/activation_loops.h"
#include "quant/tensors_cuda.h"
#include "quant/weight_loops.h"

namespace scalewright::device_test {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kDouble};

ReferenceScales there(const ReferenceScales& s) {
  return {device_test::there(s.ref), device_test::there(s.global), device_test::there(s.divisor)};
}
using device_test::there;

/// Weights with groups of zeros, of denormals and of large values, which float32 holds exactly.
at::Tensor weights(const TensorFormat& format, int64_t experts, int64_t rows, int64_t columns, at::ScalarType type) {
  at::Tensor w = adversarial({experts, rows, columns}, 21, type, false);
  if (format.grid != Grid::kE2M1) w = w.clamp(-1e30, 1e30);
  w[0][0].zero_();
  if (rows > 1) w[0][1].mul_(1e-30);
  return w.to(at::kFloat).to(type);
}

/// Alphas beyond and at their bounds.
at::Tensor alphas(at::IntArrayRef sizes, at::ScalarType type) {
  at::Tensor alpha = (normal(sizes, 22, type) * 0.7).exp().contiguous();
  at::Tensor flat = alpha.view({-1});
  const double at_bounds[] = {0.25, 4.0, 0.1, 7.0};
  for (int64_t i = 0; i < std::min<int64_t>(4, flat.numel()); ++i) flat[i * (flat.numel() / 4 > 0 ? flat.numel() / 4 : 1)] = at_bounds[i];
  return alpha;
}

void compare_weight(const WeightScheme& scheme, at::ScalarType type, int64_t columns, const std::string& name) {
  const int64_t experts = 3, rows = 5;
  const at::Tensor w = weights(scheme.format, experts, rows, columns, type);
  const int64_t group = scheme.group(columns);
  const std::string what = fmt::format("{} of {} weights, K {}, rules {}, scales {}", name, c10::toString(type), columns, static_cast<int>(scheme.rules),
                                       c10::toString(scheme.scale_dtype));
  const ReferenceScales scales = reference_scales(scheme, w, "w");
  at::Tensor amax = w.to(at::kFloat).view({-1, group}).abs().amax(1);
  expect_same("group_amax", cuda::group_amax(there(w), group), amax, what);
  const at::Tensor alpha = alphas(scales.ref.sizes(), type == at::kDouble ? at::kDouble : at::kFloat);
  const ReferenceScales scales_there = there(scales);
  for (const auto out : kTypes)
    expect_same("fake_quantize_weight " + name, cuda::fake_quantize_weight(scheme, scales_there, there(alpha), there(w), out),
                fake_quantize_weight(scheme, scales, alpha, w, out), what + " to " + c10::toString(out));
  for (const auto gradient : kTypes) {
    const at::Tensor dw = normal({experts * rows, columns}, 23, gradient);
    const auto accurate = gradient == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor want = normal(alpha.sizes(), 24, accurate), got = there(want.clone());
    for (int64_t e = 0; e < experts; ++e) add_weight_alpha_gradient(scheme, scales, alpha, w, e, 0, dw.narrow(0, e * rows, rows), want);
    cuda::add_weight_alpha_gradient(scheme, scales_there, there(alpha), there(w), 0, there(dw), got);
    expect_same("weight_alpha_gradient " + name, got, want, what + " from dW in " + c10::toString(gradient));
    // A tile in the middle.
    add_weight_alpha_gradient(scheme, scales, alpha, w, 1, 2, dw.narrow(0, 0, 3), want);
    cuda::add_weight_alpha_gradient(scheme, scales_there, there(alpha), there(w), rows + 2, there(dw.narrow(0, 0, 3)), got);
    expect_same("weight_alpha_gradient " + name, got, want, what + " of a tile");
  }
}

TEST(Quantizer, Weights) {
  for (const Format& format : all_formats()) {
    for (const auto rules : {Rules::kDeploy, Rules::kPeerEager, Rules::kPeerTriton}) {
      for (const auto type : kTypes) {
        const bool channel = format.weight.layout == ScaleLayout::kChannel;
        for (const int64_t columns : channel ? std::vector<int64_t>{37, 272} : std::vector<int64_t>{format.weight.group, 3 * 128}) {
          compare_weight({format.weight, rules, at::kBFloat16}, type, columns, std::string(format.name));
          if (rules == Rules::kDeploy && type == at::kFloat)
            for (const auto scale : {at::kFloat, at::kHalf}) compare_weight({format.weight, rules, scale}, type, columns, std::string(format.name));
        }
      }
    }
  }
}

TEST(Quantizer, VllmRoundsGroupScalesAgain) {
  WeightScheme scheme{find_format("w4afp8").weight, Rules::kDeploy, at::kBFloat16};
  scheme.vllm_w4afp8 = true;
  for (const int64_t columns : {128, 5 * 128, 40 * 128}) compare_weight(scheme, at::kFloat, columns, "w4afp8 vllm");
}

void compare_activation(const TensorFormat& format, Rules rules, at::ScalarType type, int64_t tokens, int64_t columns, const std::string& name) {
  ActivationScheme scheme{format, rules, {0, tokens}, {}};
  const std::string what = fmt::format("{} of {} [{}, {}], rules {}", name, c10::toString(type), tokens, columns, static_cast<int>(rules));
  const at::Tensor x = adversarial({tokens, columns}, 31, type, true), dy = normal({tokens, columns}, 32, type);
  at::Tensor alpha = at::ones({1}), ref = at::ones({1});
  if (scheme.two_level()) {
    if (rules != Rules::kDeploy) scheme.offsets = {0, tokens / 3, tokens / 3, tokens / 2, tokens};   // an expert without tokens
    const auto segments = static_cast<int64_t>(scheme.offsets.size()) - 1;
    ref = at::exp2(normal({segments}, 33) * 6 - 8);
    alpha = at::exp2(normal({segments}, 34));
    if (segments > 2) alpha[1] = 9.0;
    alpha.requires_grad_();
    const at::Tensor globals = cuda::activation_globals(rules == Rules::kDeploy, there(ref), there(alpha));
    std::vector<float> wanted;
    for (int64_t i = 0; i < segments; ++i)
      wanted.push_back(scale_rules::activation_global(rules == Rules::kDeploy, ref[i].item<float>(), alpha[i].item<float>()));
    expect_same("activation_globals", globals, at::tensor(wanted), what);
    scheme.globals = wanted;
    scheme.globals_device = globals;
  }
  const auto compare = [&](const std::string& how) {
    expect_same("fake_quantize_activation " + name, cuda::fake_quantize_activation(scheme, there(x)), fake_quantize_activation(scheme, x), what + how);
    const ActivationGradient want = activation_gradient(scheme, x, dy, true);
    const cuda::ActivationGradients got = cuda::activation_gradient(scheme, there(x), there(dy), there(alpha.detach()).requires_grad_(alpha.requires_grad()), there(ref));
    expect_same("activation_gradient " + name, got.x, want.x, what + how);
  };
  compare("");
  if (!scheme.two_level()) {
    scheme.row_amax = at::rand({tokens}) * 3;
    const at::Tensor on_host = scheme.row_amax;
    scheme.row_amax = there(on_host);
    const at::Tensor got = cuda::fake_quantize_activation(scheme, there(x));
    scheme.row_amax = on_host;
    expect_same("fake_quantize_activation " + name, got, fake_quantize_activation(scheme, x), what + ", maxima given");
    return;
  }
  // The global's gradient, on finite values: the CPU adds tokens up exactly, the GPU in float64.
  const at::Tensor finite = adversarial({tokens, columns}, 35, type, false).clamp(-1e4, 1e4);
  const ActivationGradient want = activation_gradient(scheme, finite, dy, true);
  std::vector<double> d_alpha;
  for (std::size_t i = 0; i < want.global.size(); ++i)
    d_alpha.push_back(clamped_alpha(rules == Rules::kDeploy ? rules : Rules::kPeerEager, alpha[i].item<float>()).pass
                          ? double{want.global[i]} * want.factor * ref[i].item<float>() : 0.0);
  const at::Tensor wanted = at::tensor(d_alpha, at::kDouble), got = cuda::activation_gradient(scheme, there(finite), there(dy),
      there(alpha.detach().to(at::kDouble)).requires_grad_(), there(ref)).alpha;
  const at::Tensor error = (got.to(at::kCPU) - wanted).abs().max();
  EXPECT_LE(error.item<double>(), 1e-12 * wanted.abs().max().clamp_min(1.0).item<double>()) << what;
}

TEST(Quantizer, Activations) {
  for (const Format& format : all_formats()) {
    if (!format.activation) continue;
    for (const auto rules : {Rules::kDeploy, Rules::kPeerEager}) {
      for (const auto type : kTypes) {
        compare_activation(*format.activation, rules, type, 13, 48, std::string(format.name));
        compare_activation(*format.activation, rules, type, 6, 1040, std::string(format.name));
        if (format.activation->layout == ScaleLayout::kChannel) compare_activation(*format.activation, rules, type, 3, 77, std::string(format.name));
      }
    }
  }
}

}  // namespace
}  // namespace scalewright::device_test
