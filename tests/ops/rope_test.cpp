#include "ops/rope.h"

#include "support.h"

namespace scalewright {
namespace {

at::Tensor frequencies(int64_t half) { return at::pow(10000.0, -at::arange(half, at::kDouble) / half); }

TEST(Rope, QuarterTurnMovesTheFirstHalfToTheSecond) {
  const RopeTable table = make_rope_table(kExact, at::tensor({int64_t{1}}), at::full({2}, M_PI / 2, at::kDouble), 1.0);
  const at::Tensor y = apply_rope(at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({1, 1, 4}), table);
  EXPECT_LT(max_difference(y.view(-1), at::tensor({-3.0, -4.0, 1.0, 2.0}, at::kDouble)), 1e-15);
}

TEST(Rope, IsAComplexRotation) {
  const at::Tensor x = random({11, 3, 10}, 1), positions = at::arange(5, 16, at::kLong), f = frequencies(5);
  const at::Tensor angle = at::outer(positions.to(at::kDouble), f).unsqueeze(1);
  const at::Tensor z = at::complex(x.narrow(2, 0, 5), x.narrow(2, 5, 5)) * at::polar(at::ones_like(angle), angle) * 1.5;
  const at::Tensor y = apply_rope(x, make_rope_table(kExact, positions, f, 1.5));
  EXPECT_LT(max_difference(y, at::cat({at::real(z), at::imag(z)}, 2)), 1e-12);
}

TEST(Rope, TableIsExactForLargePositions) {
  // Angles in float32 would be off by 0.004 at position 100000.
  const RopeTable table = make_rope_table({}, at::tensor({int64_t{100000}}), at::ones({1}, at::kDouble), 1.0);
  EXPECT_EQ(table.cos.scalar_type(), at::kFloat);
  EXPECT_NEAR(table.cos.item<float>(), std::cos(100000.0), 1e-7);
}

TEST(Rope, GradientIsTheAdjoint) {
  const RopeTable table = make_rope_table(kExact, at::arange(4, at::kLong), frequencies(3), 1.25);
  expect_gradients_match_differences(
      [&](const std::vector<at::Tensor>& x) { return apply_rope(x[0].narrow(1, 0, 2), table); },
      {random({4, 3, 6}, 1)});
}

TEST(Rope, Bf16RoundsOnce) {
  const at::Tensor x = random({9, 2, 32}, 1, at::kBFloat16), positions = at::arange(9, at::kLong);
  const at::Tensor exact = apply_rope(x.to(at::kDouble), make_rope_table(kExact, positions, frequencies(16), 1.0));
  EXPECT_LE(bf16_steps(apply_rope(x, make_rope_table({at::kBFloat16}, positions, frequencies(16), 1.0)), exact), 0.51);
}

TEST(Rope, NoTokens) {
  const RopeTable table = make_rope_table({}, at::zeros({0}, at::kLong), frequencies(4), 1.0);
  EXPECT_EQ(apply_rope(at::zeros({0, 2, 8}), table).sizes(), at::IntArrayRef({0, 2, 8}));
}

}  // namespace
}  // namespace scalewright
