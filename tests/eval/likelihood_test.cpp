// Teacher-forced scores against the logits and divergences that transformers gives.
#include "eval/likelihood.h"

#include <gtest/gtest.h>

#include "reference_model.h"

namespace scalewright {
namespace {

/// The last `count` tokens of every row are scored given those before.
std::vector<Continuation> continuations_of(const std::string& model, std::size_t count) {
  std::vector<Continuation> out;
  for (const auto& row : reference_rows(model)) out.push_back({{row.begin(), row.end() - count}, {row.end() - count, row.end()}});
  return out;
}

class LikelihoodOf : public testing::TestWithParam<const char*> {};

TEST_P(LikelihoodOf, EqualsTheExpectedLogits) {
  const auto decoder = reference_model(GetParam(), {});
  const at::Tensor logits = load_tensors(reference_folder(GetParam()) / "expected.safetensors").at("logits").to(at::kDouble);
  constexpr std::size_t kCount = 5;
  const auto continuations = continuations_of(GetParam(), kCount);
  LikelihoodOptions options;
  options.batch = 3;
  options.logit_values = 2 * decoder->config().vocabulary;   // two rows of logits at a time
  const auto scores = score_continuations(*decoder, Mode::kTeacher, {}, continuations, options);
  for (std::size_t b = 0; b < scores.size(); ++b) {
    double expected = 0;
    const at::Tensor log_p = at::log_softmax(logits[b], 1);
    const int64_t length = logits.size(1);
    for (std::size_t t = 0; t < kCount; ++t) expected += log_p[length - kCount + t - 1][continuations[b].tokens[t]].item<double>();
    EXPECT_NEAR(scores[b].log_likelihood, expected, 1e-9) << "float64 throughout";
    EXPECT_EQ(scores[b].tokens, static_cast<int64_t>(kCount));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LikelihoodOf, testing::Values("qwen3_moe", "hy_v3", "qwen2"), [](const auto& info) { return std::string(info.param); });

TEST(Likelihood, DivergenceEqualsTheReference) {
  const auto expected = load_tensors(reference_folder("qwen3_moe") / "expected.safetensors");
  const at::Tensor teacher = at::log_softmax(expected.at("logits").to(at::kDouble), -1);
  const at::Tensor student = at::log_softmax(expected.at("w8a8.logits").to(at::kDouble), -1);
  const at::Tensor fkl = (teacher.exp() * (teacher - student)).sum(-1);
  const at::Tensor agree = teacher.argmax(-1).eq(student.argmax(-1)).to(at::kLong);

  const auto decoder = reference_model("qwen3_moe", {});
  quantize_reference(*decoder, "w8a8", "mcore_qad");
  constexpr std::size_t kCount = 6;
  const auto scores = score_continuations(*decoder, Mode::kStudent, {decoder.get(), Mode::kTeacher}, continuations_of("qwen3_moe", kCount), {});
  const int64_t length = fkl.size(1);
  for (std::size_t b = 0; b < scores.size(); ++b) {
    const double want = fkl[b].slice(0, length - kCount - 1, length - 1).sum().item<double>();
    EXPECT_NEAR(scores[b].fkl, want, 1e-5 * want) << "float32 inside the quantizers";
    EXPECT_EQ(scores[b].top1_agree, agree[b].slice(0, length - kCount - 1, length - 1).sum().item<int64_t>());
  }
}

TEST(Likelihood, AModelDoesNotDivergeFromItself) {
  const auto decoder = reference_model("qwen3_moe", {});
  for (const auto& score : score_continuations(*decoder, Mode::kTeacher, {decoder.get(), Mode::kTeacher}, continuations_of("qwen3_moe", 4), {})) {
    EXPECT_EQ(score.fkl, 0);
    EXPECT_EQ(score.top1_agree, score.tokens);
  }
}

TEST(Likelihood, BatchesDoNotMatter) {
  const auto decoder = reference_model("hy_v3", {});
  const auto continuations = continuations_of("hy_v3", 3);
  LikelihoodOptions one;
  one.batch = 1;
  LikelihoodOptions few;
  few.batch_tokens = 30;   // one row and a bit
  const auto a = score_continuations(*decoder, Mode::kTeacher, {}, continuations, {});
  const auto b = score_continuations(*decoder, Mode::kTeacher, {}, continuations, one);
  const auto c = score_continuations(*decoder, Mode::kTeacher, {}, continuations, few);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i].log_likelihood, b[i].log_likelihood, 1e-10);   // float64, sums in another order
    EXPECT_NEAR(a[i].log_likelihood, c[i].log_likelihood, 1e-10);
  }
}

}  // namespace
}  // namespace scalewright
