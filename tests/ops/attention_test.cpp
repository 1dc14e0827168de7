#include "ops/attention.h"

#include "base/error.h"
#include "support.h"

namespace scalewright {
namespace {

using Offsets = std::vector<int64_t>;

/// With every query here.
at::Tensor attention(const Compute& compute, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Offsets& offsets, double scale) {
  return scalewright::attention(compute, q, k, v, AttentionRows::whole(offsets), scale);
}

/// Whole score matrices with a mask, as transformers' eager attention has them.
at::Tensor naive(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Offsets& offsets, double scale) {
  const int64_t tokens = q.size(0), group = q.size(1) / k.size(1);
  const at::Tensor document =
      at::searchsorted(at::tensor(offsets), at::arange(tokens, at::kLong), false, /*right=*/true);
  const at::Tensor seen =
      document.unsqueeze(1).eq(document.unsqueeze(0)).logical_and(at::ones({tokens, tokens}, at::kBool).tril());
  const at::Tensor qh = q.transpose(0, 1), kh = k.transpose(0, 1).repeat_interleave(group, 0),
                   vh = v.transpose(0, 1).repeat_interleave(group, 0);
  const at::Tensor scores = (at::matmul(qh, kh.transpose(1, 2)) * scale)
                                .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  return at::matmul(scores.softmax(-1), vh).transpose(0, 1);
}

struct Case {
  Offsets offsets;
  int64_t heads, kv_heads, width;
};
// Documents below, at and above the block of 64; empty ones; grouped and plain heads; widths that are no multiple of a
// vector.
const std::vector<Case> kCases = {{{0, 1}, 1, 1, 4},        {{0, 5, 5, 12}, 4, 2, 8},
                                  {{0, 64, 128}, 2, 1, 16}, {{0, 63, 128, 193}, 2, 2, 20},
                                  {{0, 200}, 6, 2, 64},     {{0, 0, 3, 133}, 3, 1, 7}};

TEST(Attention, EqualsTheFormulaInFloat64) {
  for (const Case& c : kCases) {
    const int64_t tokens = c.offsets.back();
    const at::Tensor q = random({tokens, c.heads, c.width}, 1), k = random({tokens, c.kv_heads, c.width}, 2),
                     v = random({tokens, c.kv_heads, c.width}, 3);
    EXPECT_LT(max_difference(attention(kExact, q, k, v, c.offsets, 0.37), naive(q, k, v, c.offsets, 0.37)), 1e-12)
        << tokens;
  }
}

TEST(Attention, GradientsEqualTheFormulasInFloat64) {
  for (const Case& c : kCases) {
    const int64_t tokens = c.offsets.back();
    const std::vector<at::Tensor> in = {random({tokens, c.heads, c.width}, 1), random({tokens, c.kv_heads, c.width}, 2),
                                        random({tokens, c.kv_heads, c.width}, 3)};
    const auto ours =
        gradients([&](const auto& x) { return attention(kExact, x[0], x[1], x[2], c.offsets, 0.37); }, in);
    const auto want = gradients([&](const auto& x) { return naive(x[0], x[1], x[2], c.offsets, 0.37); }, in);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LT(max_difference(ours[i], want[i]), 1e-11) << "input " << i << " of " << tokens;
  }
}

TEST(Attention, GradientsMatchDifferences) {
  expect_gradients_match_differences(
      [](const auto& x) {
        return attention(kExact, x[0], x[1], x[2], {0, 3, 7}, 0.5);
      },
      {random({7, 2, 4}, 1), random({7, 1, 4}, 2), random({7, 1, 4}, 3)});
}

TEST(Attention, TakesViewsOfAStackedProjection) {
  const at::Tensor qkv = random({70, 8, 16}, 1);
  const Offsets offsets = {0, 30, 70};
  const Function f = [&](const std::vector<at::Tensor>& x) {
    return attention(kExact, x[0].narrow(1, 0, 4), x[0].narrow(1, 4, 2), x[0].narrow(1, 6, 2), offsets, 0.25);
  };
  const Function g = [&](const std::vector<at::Tensor>& x) {
    return naive(x[0].narrow(1, 0, 4), x[0].narrow(1, 4, 2), x[0].narrow(1, 6, 2), offsets, 0.25);
  };
  EXPECT_LT(max_difference(f({qkv}), g({qkv})), 1e-12);
  EXPECT_LT(max_difference(gradients(f, {qkv})[0], gradients(g, {qkv})[0]), 1e-11);
}

TEST(Attention, LargeScoresDoNotOverflow) {
  for (auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor q = random({150, 1, 8}, 1, dtype) * 100, k = random({150, 1, 8}, 2, dtype) * 100,
                     v = random({150, 1, 8}, 3, dtype);
    const at::Tensor want = naive(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), {0, 150}, 1.0);
    // Scores reach 1e5, where float32 resolves 0.01.
    EXPECT_LT(max_difference(attention({dtype}, q, k, v, {0, 150}, 1.0), want), dtype == at::kFloat ? 0.05 : 1e-9);
  }
}

TEST(Attention, LowPrecisionFollowsFloat64) {
  const Offsets offsets = {0, 90, 170};
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor q = random({170, 4, 32}, 1, dtype), k = random({170, 2, 32}, 2, dtype),
                     v = random({170, 2, 32}, 3, dtype);
    const at::Tensor want = naive(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), offsets, 0.18);
    const at::Tensor y = attention({dtype}, q, k, v, offsets, 0.18);
    EXPECT_EQ(y.scalar_type(), dtype);
    if (dtype == at::kFloat)
      EXPECT_LT(max_difference(y, want), 5e-6);  // sums of 90 terms of order 1, eps 1.2e-7
    else
      EXPECT_LE(bf16_steps(y, want), 0.51);  // everything but the result is float32
  }
}

TEST(Attention, DocumentsDoNotSeeEachOther) {
  const Offsets offsets = {0, 40, 110};
  const at::Tensor q = random({110, 2, 16}, 1, at::kFloat), k = random({110, 1, 16}, 2, at::kFloat),
                   v = random({110, 1, 16}, 3, at::kFloat);
  const auto run = [&](const at::Tensor& keys, const at::Tensor& values) {
    return attention({}, q, keys, values, offsets, 0.25);
  };
  const at::Tensor y = run(k, v);
  at::Tensor k2 = k.clone(), v2 = v.clone();
  k2.narrow(0, 0, 40).mul_(-3);
  v2.narrow(0, 0, 40).fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(at::equal(run(k2, v2).narrow(0, 40, 70), y.narrow(0, 40, 70)));
  // and alone a document gives the same bits
  EXPECT_TRUE(at::equal(attention({}, q.narrow(0, 40, 70), k.narrow(0, 40, 70), v.narrow(0, 40, 70), {0, 70}, 0.25),
                        y.narrow(0, 40, 70)));
}

TEST(Attention, PartsOfTheQueriesGiveTheSameRowsAndGradientsThatAddUp) {
  const Offsets offsets = {0, 150, 157, 300};
  const std::vector<at::Tensor> in = {random({300, 4, 16}, 1), random({300, 2, 16}, 2), random({300, 2, 16}, 3)};
  const Function whole = [&](const std::vector<at::Tensor>& x) { return attention(kExact, x[0], x[1], x[2], offsets, 0.25); };
  const at::Tensor y = whole(in), weights = random(y.sizes(), 7);
  const auto weighted = [](const Function& f, const at::Tensor& w) -> Function { return [=](const auto& x) { return f(x) * w; }; };
  const std::vector<at::Tensor> want = gradients(weighted(whole, weights), in, 5);
  // Pieces of documents as two context-parallel ranks have them, at borders that no block knows; the second document on one rank only.
  const std::vector<std::vector<QuerySegment>> ranks = {{{0, 0, 0, 37}, {0, 37, 113, 37}, {1, 74, 0, 7}, {2, 81, 0, 3}, {2, 84, 140, 3}},
                                                        {{0, 0, 37, 76}, {2, 76, 3, 137}}};
  std::vector<at::Tensor> sums = {at::zeros_like(in[0]), at::zeros_like(in[1]), at::zeros_like(in[2])};
  for (const auto& segments : ranks) {
    std::vector<int64_t> rows;
    for (const QuerySegment& s : segments)
      for (int64_t i = 0; i < s.length; ++i) rows.push_back(offsets[s.document] + s.first_position + i);
    const at::Tensor index = at::tensor(rows, at::kLong);
    const Function part = [&](const std::vector<at::Tensor>& x) {
      return scalewright::attention(kExact, x[0].index_select(0, index), x[1], x[2], AttentionRows{offsets, segments}, 0.25);
    };
    EXPECT_TRUE(at::equal(part(in), y.index_select(0, index)));
    // The same upstream gradient as the whole has at these rows.
    const at::Tensor upstream = random(y.sizes(), 5).index_select(0, index) * weights.index_select(0, index);
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& x : in) leaves.push_back(x.clone().requires_grad_());
    (part(leaves) * upstream).sum().backward();
    for (std::size_t i = 0; i < 3; ++i) sums[i] += leaves[i].grad();
  }
  // Sums of the same products in another order.
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LT(max_difference(sums[i], want[i]), 1e-11) << i;
}

TEST(Attention, TheFutureDoesNotReachBack) {
  const at::Tensor q = random({100, 1, 8}, 1, at::kFloat), k = random({100, 1, 8}, 2, at::kFloat),
                   v = random({100, 1, 8}, 3, at::kFloat);
  const at::Tensor y = attention({}, q, k, v, {0, 100}, 0.3);
  for (int64_t length : {1, 33, 64, 65, 99})
    EXPECT_TRUE(at::equal(
        attention({}, q.narrow(0, 0, length), k.narrow(0, 0, length), v.narrow(0, 0, length), {0, length}, 0.3),
        y.narrow(0, 0, length)));
}

TEST(Attention, SameBitsForAnyNumberOfThreads) {
  const std::vector<at::Tensor> in = {random({300, 4, 16}, 1, at::kFloat), random({300, 2, 16}, 2, at::kFloat),
                                      random({300, 2, 16}, 3, at::kFloat)};
  const Offsets offsets = {0, 10, 150, 180, 300};
  const Function f = [&](const std::vector<at::Tensor>& x) { return attention({}, x[0], x[1], x[2], offsets, 0.25); };
  EXPECT_TRUE(at::equal(with_threads(1, [&] { return f(in); }), with_threads(3, [&] { return f(in); })));
  const auto one = with_threads(1, [&] { return gradients(f, in); });
  const auto three = with_threads(3, [&] { return gradients(f, in); });
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(one[i], three[i]));
}

TEST(Attention, NoTokens) {
  at::Tensor q = at::zeros({0, 2, 8}).requires_grad_();
  const at::Tensor y = attention({}, q, at::zeros({0, 1, 8}), at::zeros({0, 1, 8}), {0, 0}, 1.0);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 2, 8}));
  y.sum().backward();
}

TEST(Attention, RejectsOffsetsThatDoNotCoverTheTokens) {
  const at::Tensor x = at::zeros({4, 1, 8});
  EXPECT_THROW(attention({}, x, x, x, {0, 3}, 1.0), BugError);
  EXPECT_THROW(attention({}, x, x, x, {0, 3, 2, 4}, 1.0), BugError);
}

TEST(AttentionStep, EqualsTheLastRowOfAttention) {
  const std::vector<int64_t> lengths = {1, 17, 70};
  for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor q = random({3, 4, 20}, 1, dtype), k = random({3, 80, 2, 20}, 2, dtype),
                     v = random({3, 80, 2, 20}, 3, dtype);
    const at::Tensor y = attention_step({dtype}, q, k, v, lengths, 0.3);
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t length = lengths[static_cast<std::size_t>(b)];
      const auto exact = [&](const at::Tensor& x) { return x[b].narrow(0, 0, length).to(at::kDouble); };
      const at::Tensor queries = q[b].to(at::kDouble).unsqueeze(0).expand({length, 4, 20});
      const at::Tensor want = naive(queries, exact(k), exact(v), {0, length}, 0.3)[length - 1];
      if (dtype == at::kDouble)
        EXPECT_LT(max_difference(y[b], want), 1e-12);
      else if (dtype == at::kFloat)
        EXPECT_LT(max_difference(y[b], want), 2e-6);  // sums of 70 terms of order 1
      else
        EXPECT_LE(bf16_steps(y[b], want), 0.51);
    }
  }
}

TEST(AttentionStep, IgnoresWhatLiesBeyondTheLength) {
  const at::Tensor q = random({2, 2, 8}, 1, at::kFloat), k = random({2, 9, 1, 8}, 2, at::kFloat),
                   v = random({2, 9, 1, 8}, 3, at::kFloat);
  const at::Tensor y = attention_step({}, q, k, v, {4, 9}, 0.3);
  k[0].narrow(0, 4, 5).fill_(std::numeric_limits<float>::quiet_NaN());
  v[0].narrow(0, 4, 5).fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(at::equal(attention_step({}, q, k, v, {4, 9}, 0.3), y));
  EXPECT_THROW(attention_step({}, q, k, v, {0, 9}, 0.3), BugError);
}

}  // namespace
}  // namespace scalewright
