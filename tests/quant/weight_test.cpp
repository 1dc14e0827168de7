// What must hold for every weight: what is exported is what is trained, scales stay finite, gradients follow their definition.
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "golden.h"
#include "quant/weight_loops.h"
#include "quant/weight_quantizer.h"

namespace scalewright {
namespace {

using test::Golden;

at::Tensor random_weight(int64_t experts, int64_t rows, int64_t columns, at::ScalarType dtype = at::kBFloat16) {
  return (at::randn({experts, rows, columns}, at::make_generator<at::CPUGeneratorImpl>(7)) * 0.05).to(dtype);
}

/// alphas from .2 to 4.2: below, in and above the bounds.
void scatter_alpha(WeightQuantizer& q) {
  at::NoGradGuard no_grad;
  q.alpha().copy_(at::rand(q.alpha().sizes(), at::make_generator<at::CPUGeneratorImpl>(11)) * 4.0 + 0.2);
}

/// The weights of the golden file, and the ends of float32.
std::vector<std::pair<std::string, at::Tensor>> hard_weights() {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const char* name : {"rand", "ties", "edge", "huge", "tiny", "denormal", "zero", "negzero"})
    result.emplace_back(name, Golden::get()[std::string("w/") + name + "/weight"].reshape({1, 4, 256}));
  at::Tensor extremes = at::zeros({1, 4, 256}, at::kFloat);
  extremes[0][0].fill_(std::numeric_limits<float>::max());
  extremes[0][1].fill_(-std::numeric_limits<float>::denorm_min());
  extremes[0][2].narrow(0, 0, 16).fill_(1e-3);
  result.emplace_back("extremes", extremes);
  at::Tensor denormal = at::zeros({1, 4, 256}, at::kFloat);
  denormal.fill_(std::numeric_limits<float>::denorm_min());
  result.emplace_back("least", denormal);
  return result;
}

class EveryFormat : public testing::TestWithParam<const char*> {
 protected:
  const TensorFormat& format() const { return find_format(GetParam()).weight; }
  WeightQuantizer make(const at::Tensor& w, at::ScalarType scale_dtype = at::kBFloat16) const {
    return WeightQuantizer(GetParam(), format(), Numerics::kDeploy, w, Compute{}, scale_dtype);
  }
};
INSTANTIATE_TEST_SUITE_P(Weights, EveryFormat, testing::Values("nvfp4", "nvfp4a16", "w4a16", "w8a8", "fp8", "w4afp8"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryFormat, WhatIsExportedIsWhatIsTrained) {
  for (const auto& [name, w] : hard_weights())
    for (const at::ScalarType scale_dtype : {at::kBFloat16, at::kFloat, at::kHalf}) {
      WeightQuantizer q = make(w, scale_dtype);
      for (int round = 0; round < 2; ++round) {
        const at::Tensor served = dequantize(q.quantize(w), format()), trained = q.fake_quantize(w, at::kFloat);
        EXPECT_TRUE(at::equal(served.view(at::kInt), trained.view(at::kInt))) << name;   // bits: the sign of zero too
        scatter_alpha(q);
      }
    }
}

TEST_P(EveryFormat, ScalesAndValuesAreFiniteAndZerosStayZeros) {
  for (const auto& [name, w] : hard_weights()) {
    WeightQuantizer q = make(w);
    for (int round = 0; round < 2; ++round) {
      const QuantizedWeight stored = q.quantize(w);
      const at::Tensor scale = stored.scale.to(at::kFloat);
      EXPECT_TRUE(at::isfinite(scale).all().item<bool>() && scale.gt(0).all().item<bool>()) << name;
      if (stored.global_scale.defined()) {
        EXPECT_TRUE(at::isfinite(stored.global_scale).all().item<bool>() && stored.global_scale.gt(0).all().item<bool>()) << name;
      }
      const at::Tensor values = q.fake_quantize(w, at::kBFloat16);
      EXPECT_TRUE(at::isfinite(values).all().item<bool>()) << name;
      EXPECT_TRUE(values.masked_select(w.eq(0)).eq(0).all().item<bool>()) << name;
      scatter_alpha(q);
    }
  }
}

TEST_P(EveryFormat, QuantizingTwiceChangesNothing) {
  const at::Tensor w = random_weight(2, 8, 256);
  WeightQuantizer q = make(w);
  scatter_alpha(q);
  const at::Tensor once = q.fake_quantize(w, at::kFloat);
  EXPECT_TRUE(at::equal(q.fake_quantize(once, at::kFloat), once));
}

TEST_P(EveryFormat, DtypesAndThreadsDoNotMatter) {
  const at::Tensor w = random_weight(2, 96, 384);
  const WeightQuantizer q = make(w);
  const at::Tensor want = q.fake_quantize(w, at::kFloat);
  EXPECT_TRUE(at::equal(q.fake_quantize(w.to(at::kDouble), at::kDouble), want.to(at::kDouble)));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(q.fake_quantize(w.to(at::kFloat), at::kFloat), want));
  at::set_num_threads(threads);
}

/// The definition in plain ATen: round(w/s) * s with straight-through rounding of codes and scales, clipped quotients constant in w.
at::Tensor plain_gradient(const WeightQuantizer& q, const TensorFormat& format, const at::Tensor& w, const at::Tensor& upstream) {
  const int64_t group = format.group ? format.group : w.size(2);
  const at::Tensor alpha = q.alpha().detach().clone().requires_grad_(true), wg = w.to(at::kFloat).reshape({w.size(0), w.size(1), -1, group});
  const at::Tensor raw = q.ref() * alpha.clamp(0.25, 4.0);
  const bool two_level = q.global().defined();
  const at::Tensor stored = q.quantize(w).scale.to(at::kFloat);
  at::Tensor s = raw + (stored - raw).detach();
  at::Tensor unrounded = raw.detach();
  if (two_level) {
    s = at::where(raw.gt(464.0).logical_or(raw.le(std::ldexp(1.0, -10))), s.detach(), s) * q.global().reshape({-1, 1, 1});
    unrounded = raw.detach().clamp_min(std::ldexp(1.0, -9)) * q.global().reshape({-1, 1, 1});
  }
  s = s.unsqueeze(-1).to(at::kDouble);
  const at::Tensor slack = unrounded.unsqueeze(-1).to(at::kDouble) * (1.0 + std::ldexp(1.0, -16));
  const double low = format.grid == Grid::kInt4 ? -8.0 : format.grid == Grid::kInt8 ? -128.0 : -format.qmax;
  const at::Tensor in_range = wg.ge(slack * low).logical_and(wg.le(slack * format.qmax));
  const at::Tensor value = q.fake_quantize(w, at::kFloat).reshape(wg.sizes()).to(at::kDouble);
  const at::Tensor code = value / s.detach();   // exact to rounding, which the tolerance covers
  const at::Tensor u = wg / s;
  const at::Tensor through = at::where(in_range, u + (code - u).detach(), code.detach());
  const at::Tensor loss = (through * s * upstream.reshape(wg.sizes())).sum();
  return torch::autograd::grad({loss}, {alpha})[0] / std::sqrt(static_cast<double>(group) * format.qmax);
}

TEST_P(EveryFormat, AlphaGradientFollowsItsDefinition) {
  const at::Tensor w = random_weight(2, 6, 256);
  const at::Tensor upstream = at::randn({2, 6, 256}, at::make_generator<at::CPUGeneratorImpl>(3));
  WeightQuantizer q = make(w);
  for (int round = 0; round < 2; ++round) {
    at::Tensor got = at::zeros(q.alpha().sizes(), at::kDouble);
    for (int64_t e = 0; e < 2; ++e) q.add_alpha_gradient(w, e, 0, upstream[e], got);
    const at::Tensor want = plain_gradient(q, format(), w, upstream);
    // want's codes carry the float32 rounding of code * s: 127 * 2^-24 beside terms of .25 on average.
    test::expect_close(got, want, 1e-5, GetParam());
    scatter_alpha(q);
  }
}

TEST_P(EveryFormat, OwnMaximumIsNeverClipped) {
  // With alpha 1 every block's maximum is in range: its term is q - u, at most half a step, never the whole code.
  const at::Tensor w = random_weight(1, 16, 256);
  const WeightQuantizer q = make(w);
  const int64_t group = format().group ? format().group : 256;
  const at::Tensor wg = w.to(at::kFloat).reshape({1, 16, -1, group});
  const at::Tensor one_hot = at::zeros_like(wg).scatter_(-1, wg.abs().argmax(-1, true), 1.0).reshape({1, 16, 256});
  at::Tensor d = at::zeros(q.alpha().sizes(), at::kDouble);
  q.add_alpha_gradient(w, 0, 0, one_hot[0], d);
  const at::Tensor scale = q.ref() * (q.global().defined() ? q.global().reshape({-1, 1, 1}) : at::ones({1}));
  const double per_scale = 1.0 / std::sqrt(static_cast<double>(group) * format().qmax);
  // E4M3's own rounding of a scale moves u by up to 1/16 of 6; bfloat16's by less.
  EXPECT_LE((d / scale / per_scale).abs().max().item<double>(), format().grid == Grid::kE4M3 ? 2.0 : 0.6);
}

TEST(Weight, Nvfp4ZeroTensorAndFloors) {
  const at::Tensor zero = at::zeros({2, 4, 32}, at::kBFloat16);
  const QuantizedWeight q = WeightQuantizer("w", find_format("nvfp4").weight, Numerics::kDeploy, zero, Compute{}, at::kBFloat16).quantize(zero);
  EXPECT_TRUE(q.global_scale.eq(2688.0).all().item<bool>());
  EXPECT_TRUE(q.scale.to(at::kFloat).eq(std::ldexp(1.0, -9)).all().item<bool>());
  EXPECT_TRUE(q.codes.eq(0).all().item<bool>());
}

TEST(Weight, EachExpertHasItsOwnGlobal) {
  const at::Tensor w = random_weight(3, 4, 64);
  const TensorFormat& format = find_format("nvfp4").weight;
  const WeightQuantizer all("w", format, Numerics::kDeploy, w, Compute{}, at::kBFloat16);
  for (int64_t e = 0; e < 3; ++e) {
    const at::Tensor one = w.narrow(0, e, 1).contiguous();
    const WeightQuantizer alone("w", format, Numerics::kDeploy, one, Compute{}, at::kBFloat16);
    EXPECT_EQ(all.global()[e].item<float>(), alone.global()[0].item<float>());
    EXPECT_TRUE(at::equal(all.fake_quantize(w, at::kFloat)[e], alone.fake_quantize(one, at::kFloat)[0]));
  }
}

TEST(Weight, VllmRoundingIsStableAndTrainedAsServed) {
  at::Tensor w = random_weight(1, 8, 1024);
  w.narrow(1, 0, 4).narrow(2, 0, 128).mul_(300.0);   // rows whose groups span a wide range
  const TensorFormat& format = find_format("w4afp8").weight;
  WeightQuantizer q("w", format, Numerics::kDeploy, w, Compute{}, at::kBFloat16);
  const at::Tensor plain = q.quantize(w).scale.to(at::kFloat);
  q.set_vllm_w4afp8_rounding(true);
  const QuantizedWeight stored = q.quantize(w);
  EXPECT_TRUE(at::equal(dequantize(stored, format, true), q.fake_quantize(w, at::kFloat)));
  const at::Tensor rounded = stored.scale.to(at::kFloat);
  EXPECT_FALSE(at::equal(rounded, plain));
  // Two E4M3 roundings of 1/16 each while the scale is within 448 * 8 of the row's largest (formats-and-export.md 1.6).
  EXPECT_LE(((rounded - plain).abs() / plain).max().item<double>(), 0.13);
  // What is stored differs from what that engine uses by bfloat16's rounding only.
  std::vector<float> deployed(8);
  const at::Tensor row = rounded[0][0].contiguous();
  vllm_w4afp8_scales(row.const_data_ptr<float>(), 8, deployed.data());
  for (int64_t g = 0; g < 8; ++g) EXPECT_NEAR(deployed[g] / row[g].item<float>(), 1.0, std::ldexp(1.0, -8));
}

TEST(Weight, Complaints) {
  const TensorFormat& format = find_format("w4a16").weight;
  const auto make = [&](const at::Tensor& w) { WeightQuantizer("layers.0.qkv", format, Numerics::kDeploy, w, Compute{}, at::kBFloat16); };
  EXPECT_THROW(make(at::zeros({1, 2, 100}, at::kBFloat16)), DataError);
  at::Tensor w = at::zeros({1, 2, 128}, at::kBFloat16);
  w[0][1][5] = std::numeric_limits<float>::infinity();
  try {
    make(w);
    FAIL() << "an infinite weight was accepted";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("layers.0.qkv: the weight is not finite at [0, 1, 5]"), std::string::npos) << error.what();
  }
  const at::Tensor good = at::ones({1, 2, 128}, at::kBFloat16);
  EXPECT_THROW(WeightQuantizer("w", format, Numerics::kMcoreQad, good, Compute{}, at::kBFloat16).quantize(good), BugError);
}

TEST(Format, NamesAndTypos) {
  EXPECT_EQ(all_formats().size(), 6u);
  EXPECT_EQ(find_format("w4afp8").ct_name, "pack-quantized");
  EXPECT_FALSE(find_format("nvfp4a16").activation);
  try {
    find_format("nvpf4");
    FAIL() << "an unknown format was accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'nvfp4'"), std::string::npos) << error.what();
  }
  EXPECT_EQ(find_numerics(numerics_name(Numerics::kMcoreQad)), Numerics::kMcoreQad);
  EXPECT_THROW(find_numerics("mcore"), UserError);
}

}  // namespace
}  // namespace scalewright
