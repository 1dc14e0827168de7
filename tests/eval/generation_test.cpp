// Generation against the whole forward pass: the cache, the batch and the draws must not change what a model says.
#include "eval/generation.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "reference_model.h"

namespace scalewright {
namespace {

/// Prompts of different lengths.
std::vector<Prompt> prompts_of(const std::string& model) {
  std::vector<Prompt> prompts;
  std::size_t length = 3;
  for (const auto& row : reference_rows(model)) {
    prompts.push_back({{row.begin(), row.begin() + length}, prompts.size()});
    length += 5;
  }
  return prompts;
}

at::Tensor last_logits(Decoder& decoder, Mode mode, const std::vector<int32_t>& ids) {
  at::NoGradGuard no_grad;
  const Batch batch = batch_from_documents({{ids, std::vector<std::uint8_t>(ids.size(), 0), 0}});
  ForwardOptions options;
  options.mode = mode;
  return decoder.logits(decoder.forward(batch, options).slice(0, ids.size() - 1))[0];
}

/// Greedy decoding that computes the whole text again for every token.
std::vector<int32_t> slow_greedy(Decoder& decoder, Mode mode, std::vector<int32_t> ids, int64_t count) {
  const std::size_t begin = ids.size();
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(last_logits(decoder, mode, ids).argmax().item<int64_t>()));
  return {ids.begin() + begin, ids.end()};
}

constexpr int64_t kUnusedToken = 1 << 20;   // a stop token that never comes

class GenerationOf : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(GenerationOf, CachedStepsEqualTheWholeForwardPass) {
  const auto [model, format] = GetParam();
  const auto decoder = reference_model(model, {kUnusedToken});
  const Mode mode = *format ? Mode::kStudent : Mode::kTeacher;
  if (*format) quantize_reference(*decoder, format, "deploy");
  const std::vector<Prompt> prompts = prompts_of(model);
  GenerationOptions options;
  options.max_new_tokens = 8;
  const auto answers = generate(*decoder, mode, prompts, options);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(answers[i].ids, slow_greedy(*decoder, mode, prompts[i].ids, 8)) << "prompt " << i;
    EXPECT_FALSE(answers[i].stopped);
  }
}

// w8a8: activation scales are per token, so they do not depend on the batch.
INSTANTIATE_TEST_SUITE_P(Models, GenerationOf,
                         testing::Values(std::pair{"qwen3_moe", ""}, std::pair{"hy_v3", ""}, std::pair{"llama", ""}, std::pair{"qwen3_moe", "w8a8"}),
                         [](const auto& info) { return std::string(info.param.first) + (*info.param.second ? "_" : "") + info.param.second; });

TEST(Generation, BatchSizeDoesNotMatterAndStoppedSequencesLeave) {
  const auto plain = reference_model("qwen3_moe", {kUnusedToken});
  const std::vector<Prompt> prompts = prompts_of("qwen3_moe");
  GenerationOptions options;
  options.max_new_tokens = 6;
  const auto all = generate(*plain, Mode::kTeacher, prompts, options);
  // The third token of the second answer becomes a stop token: that answer must end there, the others unless they say it too.
  const int32_t stop = all[1].ids[2];
  const auto stopping = reference_model("qwen3_moe", {kUnusedToken, stop});
  for (int64_t batch : {1, 3, 64}) {
    options.batch = batch;
    int64_t finished = 0;
    options.progress = [&](int64_t sequences) { finished += sequences; };
    const auto answers = generate(*stopping, Mode::kTeacher, prompts, options);
    EXPECT_EQ(finished, static_cast<int64_t>(prompts.size()));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto end = std::find(all[i].ids.begin(), all[i].ids.end(), stop);
      EXPECT_EQ(answers[i].ids, std::vector<int32_t>(all[i].ids.begin(), end)) << "batch " << batch << ", prompt " << i;
      EXPECT_EQ(answers[i].stopped, end != all[i].ids.end());
    }
    EXPECT_TRUE(answers[1].stopped);
  }
}

TEST(Generation, AnAnswerOfMaximalLengthMayStillStop) {
  const auto plain = reference_model("qwen3_moe", {kUnusedToken});
  GenerationOptions options;
  options.max_new_tokens = 4;
  // A prompt whose fourth token is none of the first three, so that it can serve as the stop token.
  std::vector<Prompt> prompts;
  std::vector<int32_t> ids;
  for (const Prompt& prompt : prompts_of("qwen3_moe")) {
    prompts = {prompt};
    ids = generate(*plain, Mode::kTeacher, prompts, options)[0].ids;
    if (std::count(ids.begin(), ids.begin() + 3, ids[3]) == 0) break;
  }
  ASSERT_EQ(std::count(ids.begin(), ids.begin() + 3, ids[3]), 0) << "every prompt's answer repeats itself";
  const auto stopping = reference_model("qwen3_moe", {ids[3]});
  options.max_new_tokens = 3;
  const Generated answer = generate(*stopping, Mode::kTeacher, prompts, options)[0];
  EXPECT_EQ(answer.ids.size(), 3u);
  EXPECT_TRUE(answer.stopped);
  options.max_new_tokens = 2;
  EXPECT_FALSE(generate(*stopping, Mode::kTeacher, prompts, options)[0].stopped);
}

TEST(Generation, SamplesAreAFunctionOfSeedAndStream) {
  const auto decoder = reference_model("qwen3_moe", {kUnusedToken});
  const std::vector<Prompt> prompts = prompts_of("qwen3_moe");
  GenerationOptions options;
  options.max_new_tokens = 5;
  options.temperature = 1.5;
  const auto draw = [&](std::uint64_t seed, int64_t batch) {
    options.seed = seed;
    options.batch = batch;
    std::vector<std::vector<int32_t>> ids;
    for (const Generated& answer : generate(*decoder, Mode::kTeacher, prompts, options)) ids.push_back(answer.ids);
    return ids;
  };
  EXPECT_EQ(draw(7, 64), draw(7, 1));
  EXPECT_NE(draw(7, 64), draw(8, 64));
  std::vector<Prompt> same(2, prompts[0]);
  same[1].stream = 99;
  const auto answers = generate(*decoder, Mode::kTeacher, same, options);
  EXPECT_NE(answers[0].ids, answers[1].ids) << "questions draw their own numbers";
}

TEST(Generation, WithoutStopTokenNothingWouldEnd) {
  const auto decoder = reference_model("qwen3_moe", {});
  EXPECT_THROW(generate(*decoder, Mode::kTeacher, prompts_of("qwen3_moe"), {}), DataError);
}

TEST(ChooseToken, NucleusAndInverseDistribution) {
  // Probabilities 0.5, 0.3, 0.2 of tokens 2, 0, 1.
  const at::Tensor logits = at::log(at::tensor({0.3, 0.2, 0.5}, at::kDouble));
  EXPECT_EQ(choose_token(logits, 0, 1, 0.99), 2);
  EXPECT_EQ(choose_token(logits, 1, 1, 0.0), 2);
  EXPECT_EQ(choose_token(logits, 1, 1, 0.49), 2);
  EXPECT_EQ(choose_token(logits, 1, 1, 0.51), 0);
  EXPECT_EQ(choose_token(logits, 1, 1, 0.79), 0);
  EXPECT_EQ(choose_token(logits, 1, 1, 0.81), 1);
  // Nucleus 0.6 keeps 0.5 and 0.3, renormalised: 0.625 and 0.375.
  EXPECT_EQ(choose_token(logits, 1, 0.6, 0.62), 2);
  EXPECT_EQ(choose_token(logits, 1, 0.6, 0.63), 0);
  EXPECT_EQ(choose_token(logits, 1, 0.6, 0.999), 0);
  // Nucleus 0.4 keeps the first alone.
  EXPECT_EQ(choose_token(logits, 1, 0.4, 0.999), 2);
  // Temperature 0.5 squares: 25/38, 9/38, 4/38.
  EXPECT_EQ(choose_token(logits, 0.5, 1, 25.0 / 38 - 1e-9), 2);
  EXPECT_EQ(choose_token(logits, 0.5, 1, 25.0 / 38 + 1e-9), 0);
}

TEST(ChooseToken, FrequenciesFollowTheProbabilities) {
  const at::Tensor logits = at::log(at::tensor({0.3, 0.2, 0.5}, at::kDouble));
  std::array<double, 3> share{};
  constexpr int kDraws = 1000;
  for (int i = 0; i < kDraws; ++i) share[choose_token(logits, 1, 1, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  EXPECT_NEAR(share[0], 0.3, 2.0 / kDraws);   // a grid of equidistant numbers errs by one point at each end
  EXPECT_NEAR(share[1], 0.2, 2.0 / kDraws);
  EXPECT_NEAR(share[2], 0.5, 2.0 / kDraws);
}

}  // namespace
}  // namespace scalewright
