#include "ops/permute.h"

#include "base/error.h"
#include "support.h"

namespace scalewright {
namespace {

at::Tensor routing(int64_t tokens, int64_t choices, int64_t experts, std::uint64_t seed) {
  return at::randint(experts, {tokens, choices}, at::make_generator<at::CPUGeneratorImpl>(seed),
                     at::TensorOptions().dtype(at::kLong));
}

TEST(SortByExpert, KnownAnswer) {
  const ExpertOrder order = sort_by_expert(at::tensor({2, 0, 0, 3, 2, 0}, at::kLong).view({3, 2}), 5);
  EXPECT_TRUE(at::equal(order.slot, at::tensor({1, 2, 5, 0, 4, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(order.token, at::tensor({0, 1, 2, 0, 2, 1}, at::kLong)));
  EXPECT_EQ(order.offsets, (std::vector<int64_t>{0, 3, 3, 5, 6, 6}));  // experts 1 and 4 are empty
}

TEST(SortByExpert, IsTheStableSort) {
  const at::Tensor experts = routing(200, 4, 16, 1);
  const ExpertOrder order = sort_by_expert(experts, 16);
  EXPECT_TRUE(at::equal(order.slot, std::get<1>(at::sort(experts.view(-1), true, 0, false))));
}

TEST(SortByExpert, RejectsUnknownExperts) {
  EXPECT_THROW(sort_by_expert(at::tensor({4}, at::kLong).view({1, 1}), 4), BugError);
  EXPECT_THROW(sort_by_expert(at::tensor({-1}, at::kLong).view({1, 1}), 4), BugError);
}

TEST(GatherTokens, CopiesRowsAndSumsGradientsPerToken) {
  const at::Tensor x = random({30, 12}, 1), experts = routing(30, 3, 8, 2);
  const ExpertOrder order = sort_by_expert(experts, 8);
  EXPECT_TRUE(at::equal(gather_tokens(x, order), x.index_select(0, order.token)));
  const auto g = gradients([&](const std::vector<at::Tensor>& in) { return gather_tokens(in[0], order); }, {x});
  EXPECT_LT(max_difference(g[0], at::zeros_like(x).index_add(0, order.token, random({90, 12}, 99))), 1e-12);
}

TEST(CombineTokens, EqualsTheFormulaAndItsGradients) {
  const at::Tensor y = random({12, 7}, 1), weight = random({4, 3}, 2);
  const ExpertOrder order = sort_by_expert(routing(4, 3, 5, 3), 5);
  const at::Tensor scaled = y * weight.view(-1).index_select(0, order.slot).unsqueeze(1);
  EXPECT_LT(max_difference(combine_tokens(y, weight, order),
                           at::zeros({4, 7}, at::kDouble).index_add(0, order.token, scaled)),
            1e-12);
  expect_gradients_match_differences(
      [&](const std::vector<at::Tensor>& in) { return combine_tokens(in[0], in[1], order); }, {y, weight});
}

TEST(CombineTokens, AccumulatesBf16InFloat32) {
  // 1 + 2^-8 + 2^-8: each small term alone would vanish in bf16.
  const ExpertOrder order = sort_by_expert(at::tensor({0, 1, 2}, at::kLong).view({1, 3}), 3);
  const at::Tensor y = at::tensor({1.0, 0.00390625, 0.00390625}, at::kDouble).view({3, 1}).to(at::kBFloat16);
  EXPECT_EQ(combine_tokens(y, at::ones({1, 3}), order).item<double>(), 1.0078125);
}

TEST(CombineTokens, GradientsKeepTheirTypes) {
  at::Tensor y = random({8, 16}, 1, at::kBFloat16).requires_grad_(),
             weight = random({4, 2}, 2, at::kFloat).requires_grad_();
  const at::Tensor out = combine_tokens(y, weight, sort_by_expert(routing(4, 2, 3, 3), 3));
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  out.to(at::kFloat).sum().backward();
  EXPECT_EQ(y.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
}

TEST(Permute, SameBitsForAnyNumberOfThreads) {
  const at::Tensor x = random({500, 64}, 1, at::kFloat), weight = random({500, 4}, 2, at::kFloat);
  const ExpertOrder order = sort_by_expert(routing(500, 4, 16, 3), 16);
  const Function f = [&](const std::vector<at::Tensor>& in) {
    return combine_tokens(gather_tokens(in[0], order), in[1], order);
  };
  const auto one = with_threads(1, [&] { return gradients(f, {x, weight}); });
  const auto three = with_threads(3, [&] { return gradients(f, {x, weight}); });
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(one[i], three[i]));
}

TEST(Permute, NoTokens) {
  const ExpertOrder order = sort_by_expert(at::zeros({0, 2}, at::kLong), 3);
  EXPECT_EQ(order.offsets, (std::vector<int64_t>{0, 0, 0, 0}));
  const at::Tensor sorted = gather_tokens(at::zeros({0, 5}), order);
  EXPECT_EQ(sorted.sizes(), at::IntArrayRef({0, 5}));
  EXPECT_EQ(combine_tokens(sorted, at::zeros({0, 2}), order).sizes(), at::IntArrayRef({0, 5}));
}

}  // namespace
}  // namespace scalewright
