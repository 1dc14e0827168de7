// The vectorized loops against the scalar functions, at lengths with and without a remainder.
#include <ATen/ops/logspace.h>

#include "golden.h"
#include "quant/kernels.h"
#include "quant/numeric.h"

namespace scalewright {
namespace {

struct Case {
  Rounder rounder;
  Grid grid;
  float (*value)(float);
};
const Case kCases[] = {
    {{Rounding::kE2M1Even, -6, 6}, Grid::kE2M1, [](float u) { return numeric::round_e2m1(u); }},
    {{Rounding::kE2M1TowardZero, -6, 6}, Grid::kE2M1, [](float u) { return numeric::round_e2m1_toward_zero(u); }},
    {{Rounding::kInteger, -8, 7}, Grid::kInt4, [](float u) { return numeric::round_integer(u, -8, 7); }},
    {{Rounding::kIntegerAway, -7, 7}, Grid::kInt4, [](float u) { return numeric::round_integer_away(u, -7, 7); }},
    {{Rounding::kInteger, -128, 127}, Grid::kInt8, [](float u) { return numeric::round_integer(u, -128, 127); }},
    {{Rounding::kE4M3, -448, 448}, Grid::kE4M3, [](float u) { return numeric::round_e4m3(u); }},
};

TEST(Kernels, LoopsEqualScalars) {
  for (const int64_t group : {16, 128, 37}) {
    const int64_t groups = 5, n = groups * group;
    const at::Tensor x = at::randn({n}, at::make_generator<at::CPUGeneratorImpl>(1)) * at::logspace(-3, 3, n);
    const at::Tensor scale = at::linspace(0.01, 2.0, groups);
    const float* in = x.const_data_ptr<float>();
    const float* s = scale.const_data_ptr<float>();
    const RowScales scales{s, s, groups, group};
    for (const Case& c : kCases) {
      std::vector<float> got(n), again(n);
      std::vector<std::uint8_t> codes(n);
      fake_quantize_row(c.rounder, scales, in, got.data());
      code_row(c.rounder, scales, in, codes.data());
      dequantize_row(c.grid, scales, codes.data(), again.data());
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(got[i], c.value(in[i] / s[i / group]) * s[i / group]) << in[i];
        ASSERT_EQ(again[i], got[i]) << in[i];
      }
    }
  }
}

TEST(Kernels, GradientIsTheSumOverItsDefinition) {
  const int64_t group = 37, groups = 3, n = groups * group;
  const at::Tensor x = at::randn({n}, at::make_generator<at::CPUGeneratorImpl>(2)) * 8.0;
  const at::Tensor d = at::randn({n}, at::make_generator<at::CPUGeneratorImpl>(3), at::kDouble);
  const std::vector<float> scale(groups, 0.7f), low(groups, -7.5f), high(groups, 6.0f);
  const float* in = x.const_data_ptr<float>();
  std::vector<double> sums(groups);
  scale_gradient_row({Rounding::kInteger, -8, 7}, {scale.data(), scale.data(), groups, group}, {low.data(), high.data()}, in, d.const_data_ptr<double>(),
                     sums.data());
  for (int64_t g = 0; g < groups; ++g) {
    double want = 0.0;
    for (int64_t i = g * group; i < (g + 1) * group; ++i) {
      const float u = in[i] / scale[g], q = numeric::round_integer(u, -8, 7);
      want += d.const_data_ptr<double>()[i] * static_cast<double>(u >= -7.5f && u <= 6.0f ? q - u : q);
    }
    EXPECT_NEAR(sums[g], want, 1e-12 * group);   // another order of the sum
  }
}

TEST(Kernels, MaximumSeesMagnitudesAndNaN) {
  std::vector<float> x(64, -1.0f), amax(4);
  x[17] = -3.0f;
  x[33] = std::numeric_limits<float>::quiet_NaN();
  x[50] = -std::numeric_limits<float>::infinity();
  group_amax_row(x.data(), 4, 16, amax.data());
  EXPECT_EQ(amax[0], 1.0f);
  EXPECT_EQ(amax[1], 3.0f);
  EXPECT_TRUE(std::isnan(amax[2]));
  EXPECT_TRUE(std::isinf(amax[3]));
}

}  // namespace
}  // namespace scalewright
