#include "ops/norm.h"

#include "base/error.h"
#include "support.h"

namespace scalewright {
namespace {

constexpr double kEps = 1e-6;

at::Tensor naive(const at::Tensor& x, const at::Tensor& w) {
  return w * (x / at::sqrt(x.square().mean(-1, true) + kEps));
}

TEST(RmsNorm, KnownAnswer) {
  // mean of squares of (3, 4) is 12.5
  const at::Tensor y =
      rms_norm(at::tensor({3.0, 4.0}, at::kDouble).unsqueeze(0), at::tensor({1.0, 2.0}, at::kDouble), 0.0);
  EXPECT_NEAR(y[0][0].item<double>(), 3 / std::sqrt(12.5), 1e-15);
  EXPECT_NEAR(y[0][1].item<double>(), 8 / std::sqrt(12.5), 1e-15);
}

TEST(RmsNorm, EqualsTheFormulaInFloat64) {
  for (int64_t width : {1, 5, 16, 64, 131}) {
    const at::Tensor x = random({9, width}, 1), w = random({width}, 2);
    EXPECT_LT(max_difference(rms_norm(x, w, kEps), naive(x, w)), 1e-12);
  }
}

TEST(RmsNorm, RoundsAsTransformersDoes) {
  const at::Tensor x = random({64, 96}, 1, at::kBFloat16), w = random({96}, 2, at::kBFloat16);
  const at::Tensor exact = x.to(at::kFloat);
  const at::Tensor want = w * (exact * at::rsqrt(exact.square().mean(-1, true) + kEps)).to(at::kBFloat16);
  const at::Tensor y = rms_norm(x, w, kEps);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  // The mean's order of summation may move the normalized value over a rounding boundary: one step, rarely.
  EXPECT_LE((y != want).sum().item<int64_t>(), 64 * 96 / 200);
  EXPECT_LE(bf16_steps(y, want), 1.0 * w.abs().max().item<double>());
}

TEST(RmsNorm, TakesStridedHeads) {
  const at::Tensor qkv = random({7, 6, 16}, 1), w = random({16}, 2);
  const at::Tensor k = qkv.narrow(1, 3, 2);
  EXPECT_LT(max_difference(rms_norm(k, w, kEps), naive(k, w)), 1e-12);
  EXPECT_LT(
      max_difference(rms_norm(qkv.transpose(0, 2), random({7}, 3), kEps), naive(qkv.transpose(0, 2), random({7}, 3))),
      1e-12);
}

TEST(RmsNorm, Gradients) {
  expect_gradients_match_differences([](const std::vector<at::Tensor>& x) { return rms_norm(x[0], x[1], kEps); },
                                     {random({5, 19}, 1), random({19}, 2)});
  expect_gradients_match_differences(
      [](const std::vector<at::Tensor>& x) { return rms_norm(x[0].narrow(1, 1, 2), x[1], kEps); },
      {random({4, 3, 8}, 1), random({8}, 2)});
}

TEST(RmsNorm, LowPrecisionGradientsFollowFloat64) {
  const Function f = [](const std::vector<at::Tensor>& x) { return rms_norm(x[0], x[1], kEps); };
  const std::vector<at::Tensor> in = {random({40, 64}, 1, at::kBFloat16), random({64}, 2, at::kBFloat16)};
  const auto low = gradients(f, in);
  // the same rounded upstream gradient in float64
  std::vector<at::Tensor> leaves = {in[0].to(at::kDouble).requires_grad_(), in[1].to(at::kDouble).requires_grad_()};
  (f(leaves) * random({40, 64}, 99, at::kBFloat16).to(at::kDouble)).sum().backward();
  EXPECT_LE(bf16_steps(low[0], leaves[0].grad()), 0.51);
  EXPECT_LE(bf16_steps(low[1], leaves[1].grad()), 4.0);  // 40 terms, each with a normalized value rounded to bf16
}

TEST(RmsNorm, WeightGradientOnlyWhenAskedForAndIndependentOfThreads) {
  at::Tensor x = random({300, 32}, 1, at::kFloat).requires_grad_();
  const at::Tensor frozen = random({32}, 2, at::kFloat);
  rms_norm(x, frozen, kEps).sum().backward();
  EXPECT_FALSE(frozen.grad().defined());
  const Function f = [](const std::vector<at::Tensor>& in) { return rms_norm(in[0], in[1], kEps); };
  const auto one = with_threads(1, [&] { return gradients(f, {x, frozen}); });
  const auto three = with_threads(3, [&] { return gradients(f, {x, frozen}); });
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(one[i], three[i]));
}

TEST(RmsNorm, NoTokens) {
  at::Tensor x = at::zeros({0, 8}, at::kFloat).requires_grad_(), w = at::ones({8}).requires_grad_();
  const at::Tensor y = rms_norm(x, w, kEps);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 8}));
  y.sum().backward();
  EXPECT_EQ(w.grad().abs().sum().item<double>(), 0);
}

TEST(RmsNorm, RejectsOtherTypes) {
  EXPECT_THROW(rms_norm(at::ones({2, 4}, at::kHalf), at::ones({4}, at::kHalf), kEps), UserError);
}

}  // namespace
}  // namespace scalewright
