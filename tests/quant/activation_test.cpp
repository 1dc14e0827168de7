// Activation quantizers under deploy numerics.
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "golden.h"
#include "quant/activation_quantizer.h"
#include "quant/numeric.h"

namespace scalewright {
namespace {

at::Tensor random_tokens(double scale = 1.0) {
  at::Tensor x = at::randn({12, 64}, at::make_generator<at::CPUGeneratorImpl>(5)) * scale;
  x[3].zero_();
  x[4].narrow(0, 16, 16).zero_();
  return x;
}

ActivationQuantizer make(const char* format, int64_t experts = 0) {
  return ActivationQuantizer(std::string("layers.0.qkv.input"), *find_format(format).activation, Numerics::kDeploy, experts, Compute{});
}

at::Tensor gradient_of(const at::Tensor& out, const at::Tensor& upstream, const at::Tensor& of) {
  return torch::autograd::grad({(out * upstream).sum()}, {of})[0];
}

TEST(Activation, TokensAreScaledByTheirOwnMaximumInFloat32) {
  const at::Tensor x = random_tokens();
  const at::Tensor amax = x.abs().amax({1}, true);
  const at::Tensor int8_scale = (amax / 127.0).clamp_min(std::ldexp(1.0, -126));
  EXPECT_TRUE(at::equal(make("w8a8").forward(x, {}), (x / int8_scale).round() * int8_scale));
  const at::Tensor fp8_scale = (amax / 448.0).clamp_min(std::ldexp(1.0, -126));
  EXPECT_TRUE(at::equal(make("fp8").forward(x, {}), (x / fp8_scale).to(at::kFloat8_e4m3fn).to(at::kFloat) * fp8_scale));
}

TEST(Activation, TokenGradientsPassThrough) {
  const at::Tensor x = random_tokens().requires_grad_(true), upstream = at::randn({12, 64});
  for (const char* format : {"w8a8", "fp8", "w4afp8"}) EXPECT_TRUE(at::equal(gradient_of(make(format).forward(x, {}), upstream, x), upstream)) << format;
}

TEST(Activation, DtypesKeepTheirValues) {
  const at::Tensor x = random_tokens().to(at::kBFloat16);
  ActivationQuantizer q = make("fp8");
  const at::Tensor want = q.forward(x.to(at::kFloat), {});
  EXPECT_TRUE(at::equal(q.forward(x.to(at::kDouble), {}), want.to(at::kDouble)));
  EXPECT_TRUE(at::equal(q.forward(x, {}), want.to(at::kBFloat16)));
}

TEST(Activation, StaticGlobalComesFromCalibrationAndIsWhatIsExported) {
  ActivationQuantizer q = make("nvfp4");
  EXPECT_TRUE(q.has_global());
  const at::Tensor x = random_tokens();
  EXPECT_THROW(q.forward(x, {}), DataError);
  q.observe(x * 0.5);
  q.observe(x);
  q.observe(x * 0.25);
  EXPECT_EQ(q.ref().item<float>(), (x.abs().max() / 2688.0).item<float>());
  const float divisor = q.exported_divisor().item<float>(), global = 1.0f / divisor;
  EXPECT_EQ(divisor, 1.0f / q.ref().item<float>());
  // The definition, block by block.
  const at::Tensor blocks = x.reshape({12, 4, 16}), raw = (blocks.abs().amax({2}) / 6.0) / global;
  const at::Tensor effective = (raw.to(at::kFloat8_e4m3fn).to(at::kFloat) * global).unsqueeze(-1);
  const at::Tensor out = q.forward(x, {}).reshape({12, 4, 16}), u = at::where(effective.gt(0), blocks / effective, at::zeros_like(blocks));
  for (int64_t i = 0; i < u.numel(); ++i)
    ASSERT_EQ(out.contiguous().const_data_ptr<float>()[i],
              numeric::round_e2m1(u.contiguous().const_data_ptr<float>()[i]) * effective.expand_as(u).contiguous().const_data_ptr<float>()[i]);
}

TEST(Activation, ExpertsShareOneStaticGlobal) {
  ActivationQuantizer dense = make("nvfp4"), experts = make("nvfp4", 3);
  const at::Tensor x = random_tokens();
  dense.observe(x);
  experts.observe(x);
  EXPECT_EQ(experts.alpha().numel(), 1);
  EXPECT_TRUE(at::equal(experts.forward(x, {0, 4, 4, 12}), dense.forward(x, {})));
}

TEST(Activation, OnlyTokensBeyondTheGlobalAreClipped) {
  ActivationQuantizer q = make("nvfp4");
  const at::Tensor calibration = random_tokens();
  q.observe(calibration);
  const at::Tensor upstream = at::randn({12, 64});
  const at::Tensor inside = calibration.clone().requires_grad_(true);
  EXPECT_TRUE(at::equal(gradient_of(q.forward(inside, {}), upstream, inside), upstream));
  const at::Tensor beyond = (calibration * 10.0).requires_grad_(true);
  const at::Tensor d = gradient_of(q.forward(beyond, {}), upstream, beyond);
  const float limit = 6.0f * 448.0f / q.exported_divisor().item<float>();
  EXPECT_TRUE(at::equal(d.eq(0), beyond.detach().abs().gt(limit)));
  EXPECT_GT(d.eq(0).sum().item<int64_t>(), 0);
}

/// d(loss)/d(alpha) of the definition in ATen: eff = S * s, s straight through E4M3 from (bamax/6)/S, codes straight through.
TEST(Activation, LearnedGlobalFollowsItsDefinition) {
  ActivationQuantizer q = make("nvfp4");
  const at::Tensor calibration = random_tokens();
  q.observe(calibration);
  q.alpha().set_requires_grad(true);
  const at::Tensor x = calibration * at::linspace(0.1, 3.0, 12).unsqueeze(1), upstream = at::randn({12, 64});   // some tokens clip
  const at::Tensor got = gradient_of(q.forward(x, {}), upstream, q.alpha());

  const at::Tensor alpha = at::ones({1}, at::kDouble).requires_grad_(true), blocks = x.to(at::kDouble).reshape({12, 4, 16});
  const at::Tensor global = q.ref() * alpha, amax = blocks.abs().amax({2}, true);
  const at::Tensor raw = amax / 6.0 / global, clipped = raw.clamp_max(448.0);
  const at::Tensor rounded = clipped.to(at::kFloat).to(at::kFloat8_e4m3fn).to(at::kDouble);
  const at::Tensor alive = rounded.detach().gt(0);
  const at::Tensor effective = at::where(alive, (clipped + (rounded - clipped).detach()) * global, at::ones_like(rounded).detach());
  const at::Tensor u = blocks / effective, in_range = raw.le(448.0).logical_or(u.abs().le(6.0));
  const at::Tensor code = (q.forward(x, {}).detach().to(at::kDouble).reshape({12, 4, 16}) / effective).detach();
  const at::Tensor through = at::where(in_range, u + (code - u).detach(), code);
  const at::Tensor value = at::where(alive, through * effective, at::zeros_like(u));
  const at::Tensor want = gradient_of(value, upstream.reshape({12, 4, 16}), alpha) / std::sqrt(16.0 * 6.0);
  // float32 leaf, and codes recovered by a division.
  EXPECT_NEAR(got.item<double>(), want.item<double>(), 1e-5 * std::abs(want.item<double>()));
}

TEST(Activation, ZerosAndNaN) {
  for (const char* format : {"nvfp4", "w8a8", "fp8"}) {
    ActivationQuantizer q = make(format);
    at::Tensor x = at::zeros({2, 64});
    q.observe(x);
    EXPECT_TRUE(q.forward(x, {}).eq(0).all().item<bool>()) << format;
    if (q.has_global()) {
      EXPECT_EQ(q.exported_divisor().item<float>(), 2688.0f);
    }
    x[1][7] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(q.forward(x, {}).isnan().any().item<bool>()) << format;   // a NaN is never hidden
    EXPECT_EQ(q.forward(at::empty({0, 64}), {}).size(0), 0);
  }
}

}  // namespace
}  // namespace scalewright
