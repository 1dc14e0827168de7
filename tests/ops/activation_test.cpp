#include "ops/activation.h"

#include "base/error.h"
#include "ops/vector_math.h"
#include "support.h"

namespace scalewright {
namespace {

at::Tensor naive(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return halves[0] * at::sigmoid(halves[0]) * halves[1];
}

TEST(FastExp, IsWithinTwoUnitsOfTheLastPlace) {
  for (double x = -87.0; x < 88.37; x += 0.00137) {
    const auto f = static_cast<float>(x);
    EXPECT_NEAR(fast_exp(f) / std::exp(static_cast<double>(f)), 1.0, 2 * 1.2e-7) << x;
  }
  for (double x = -700.0; x < 709.0; x += 0.0137) EXPECT_NEAR(fast_exp(x) / std::exp(x), 1.0, 2 * 2.3e-16) << x;
}

TEST(FastExp, Ends) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(0.0), 1.0);
  EXPECT_EQ(fast_exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(fast_exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_GT(fast_exp(std::numeric_limits<float>::infinity()), 2e38f);
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<double>::quiet_NaN())));
}

TEST(SwiGlu, EqualsTheFormulaInFloat64) {
  for (int64_t width : {1, 7, 40}) {
    const at::Tensor x = random({6, 2 * width}, 1) * 3;
    EXPECT_LT(max_difference(swiglu(x), naive(x)), 1e-12);
  }
}

TEST(SwiGlu, LargeGatesSaturate) {
  const at::Tensor y = swiglu(at::tensor({200.0, -200.0, 2.0, 2.0}, at::kFloat).view({1, 4}));
  EXPECT_EQ(y[0][0].item<float>(), 400.0f);
  EXPECT_NEAR(y[0][1].item<float>(), 0.0f, 1e-30f);
}

TEST(SwiGlu, Gradients) {
  expect_gradients_match_differences([](const std::vector<at::Tensor>& x) { return swiglu(x[0]); },
                                     {random({5, 14}, 1)});
  expect_gradients_match_differences([](const std::vector<at::Tensor>& x) { return swiglu(x[0].t()); },
                                     {random({6, 4}, 1)});
}

TEST(SwiGlu, Bf16RoundsOnce) {
  const at::Tensor x = random({20, 64}, 1, at::kBFloat16);
  EXPECT_LE(bf16_steps(swiglu(x), naive(x.to(at::kDouble))), 0.51);
}

TEST(SwiGlu, NoTokensAndOddWidths) {
  EXPECT_EQ(swiglu(at::zeros({0, 8})).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_THROW(swiglu(at::zeros({2, 3})), BugError);
}

}  // namespace
}  // namespace scalewright
