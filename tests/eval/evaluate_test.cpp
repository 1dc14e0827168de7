// Whole evaluations of a tiny model on tasks given in token ids: every result is worked out here from its logits.
#include "eval/evaluate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "eval/generation.h"
#include "reference_model.h"

namespace scalewright {
namespace {

constexpr int64_t kLength = 3;

/// A model whose answers to the prompts end: the token that it says after `kLength` others is its stop token.
struct Answering {
  std::unique_ptr<Decoder> decoder;
  std::vector<int32_t> prompt, answer;
};

Answering answering_model() {
  Answering out;
  const auto free = reference_model("qwen3_moe", {1 << 20});
  out.prompt = reference_rows("qwen3_moe")[0];
  GenerationOptions options;
  options.max_new_tokens = kLength + 1;
  const std::vector<Prompt> prompts = {{out.prompt, 0}};
  out.answer = generate(*free, Mode::kTeacher, prompts, options)[0].ids;
  const int64_t stop = out.answer.back();
  out.answer.pop_back();
  out.decoder = reference_model("qwen3_moe", {stop});
  return out;
}

Question asked(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) { return {.prompt = prompt, .answer = answer, .choices = {}, .right = 0, .where = "test:1"}; }

Task task_of(const std::string& name, std::vector<Question> questions) {
  Task task;
  task.name = name;
  task.questions = std::move(questions);
  return task;
}

TEST(Evaluate, ExactMatchNeedsAnswerAndStopToken) {
  const Answering model = answering_model();
  std::vector<int32_t> wrong = model.answer;
  wrong[0] += 1;
  const Task task = task_of("t", {asked(model.prompt, model.answer), asked(model.prompt, wrong)});
  const Evaluator evaluator({task}, nullptr, model.decoder->config());
  Log log(0, LogLevel::kError);
  EvaluateOptions options;
  options.max_new_tokens = kLength;
  const Evaluation full = evaluator.evaluate(*model.decoder, Mode::kTeacher, {}, options, log);
  EXPECT_EQ(full.scores.tasks.at(0).items, (std::vector<double>{1, 0}));
  EXPECT_EQ(full.scores.tasks.at(0).stopped, 1);
  EXPECT_EQ(full.outcomes.at(0).output, Json(model.answer).dump());
  options.max_new_tokens = kLength - 1;   // no room for the last token
  const Evaluation cut = evaluator.evaluate(*model.decoder, Mode::kTeacher, {}, options, log);
  EXPECT_EQ(cut.scores.tasks.at(0).items, (std::vector<double>{0, 0}));
  EXPECT_EQ(cut.scores.tasks.at(0).stopped, 0);
}

TEST(Evaluate, PerplexityAndDivergenceIncludeTheStopToken) {
  const Answering model = answering_model();
  quantize_reference(*model.decoder, "w8a8", "deploy");
  const Evaluator evaluator({task_of("t", {asked(model.prompt, model.answer)})}, nullptr, model.decoder->config());
  Log log(0, LogLevel::kError);
  const Reference reference{model.decoder.get(), Mode::kTeacher};
  const Scores scores = evaluator.evaluate(*model.decoder, Mode::kStudent, reference, {}, log).scores;
  Continuation whole{model.prompt, model.answer};
  whole.tokens.push_back(static_cast<int32_t>(model.decoder->config().eos[0]));
  const auto direct = score_continuations(*model.decoder, Mode::kStudent, reference, std::vector{whole}, {}).at(0);
  EXPECT_EQ(scores.divergence->tokens, kLength + 1);
  EXPECT_DOUBLE_EQ(scores.divergence->fkl, direct.fkl / (kLength + 1));
  EXPECT_GT(scores.divergence->fkl, 0);
  EXPECT_DOUBLE_EQ(*scores.perplexity, std::exp(-direct.log_likelihood / (kLength + 1)));
}

TEST(Evaluate, TheModelItselfDivergesByZeroAndAStudentWithoutReferenceIsUnknown) {
  const Answering model = answering_model();
  quantize_reference(*model.decoder, "w8a8", "deploy");
  const Evaluator evaluator({task_of("t", {asked(model.prompt, model.answer)})}, nullptr, model.decoder->config());
  Log log(0, LogLevel::kError);
  const Scores teacher = evaluator.evaluate(*model.decoder, Mode::kTeacher, {}, {}, log).scores;
  EXPECT_EQ(teacher.divergence->fkl, 0);
  EXPECT_EQ(teacher.divergence->top1_agreement, 1);
  EXPECT_FALSE(evaluator.evaluate(*model.decoder, Mode::kStudent, {}, {}, log).scores.divergence.has_value());
}

TEST(Evaluate, ChoicesByLogLikelihoodAndPerTokenOnRequest) {
  const Answering model = answering_model();
  // What the model says itself is likelier than a detour; of a prefix and the whole, the sum always prefers the prefix.
  std::vector<int32_t> detour = model.answer;
  detour[0] = (detour[0] + 7) % static_cast<int32_t>(model.decoder->config().vocabulary);
  const std::vector<int32_t> prefix(model.answer.begin(), model.answer.end() - 1);
  Question detours{.prompt = model.prompt, .answer = {}, .choices = {detour, model.answer}, .right = 1, .where = "test:1"};
  Question prefixes{.prompt = model.prompt, .answer = {}, .choices = {model.answer, prefix}, .right = 1, .where = "test:2"};
  Task task = task_of("choices", {detours, prefixes});
  Log log(0, LogLevel::kError);
  const Evaluation sums = Evaluator({task}, nullptr, model.decoder->config()).evaluate(*model.decoder, Mode::kTeacher, {}, {}, log);
  EXPECT_EQ(sums.scores.tasks.at(0).kind, "choose");
  EXPECT_EQ(sums.scores.tasks.at(0).items, (std::vector<double>{1, 1}));
  EXPECT_EQ(sums.scores.divergence->tokens, 2 * kLength - 1) << "the right choices, without stop tokens";

  const std::vector<Continuation> both = {{model.prompt, model.answer}, {model.prompt, prefix}};
  const auto scores = score_continuations(*model.decoder, Mode::kTeacher, {}, both, {});
  const bool prefix_wins = scores[1].log_likelihood / (kLength - 1) > scores[0].log_likelihood / kLength;
  task.length_normalised = true;
  const Evaluation per_token = Evaluator({task}, nullptr, model.decoder->config()).evaluate(*model.decoder, Mode::kTeacher, {}, {}, log);
  EXPECT_EQ(per_token.scores.tasks.at(0).items.at(1), prefix_wins ? 1 : 0);
}

TEST(Evaluate, SampledRunsAreAveragedPerQuestionAndReproducible) {
  const Answering model = answering_model();
  Task task = task_of("sampled", {asked(model.prompt, model.answer), asked(model.prompt, model.answer)});
  task.sampling = {.temperature = 0.7, .top_p = 0.9, .runs = 4};
  const Evaluator evaluator({task}, nullptr, model.decoder->config());
  Log log(0, LogLevel::kError);
  EvaluateOptions options;
  options.max_new_tokens = kLength;
  const Evaluation first = evaluator.evaluate(*model.decoder, Mode::kTeacher, {}, options, log);
  ASSERT_EQ(first.outcomes.size(), 8u);
  for (std::size_t q = 0; q < 2; ++q) {
    double right = 0;
    for (const QuestionOutcome& outcome : first.outcomes)
      if (outcome.question == static_cast<int64_t>(q) && outcome.correct) right += 1;
    EXPECT_EQ(first.scores.tasks.at(0).items[q], right / 4);
  }
  options.batch = 1;
  const Evaluation again = evaluator.evaluate(*model.decoder, Mode::kTeacher, {}, options, log);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(first.outcomes[i].output, again.outcomes[i].output);
}

TEST(Evaluate, TooLongForTheModelIsAnError) {
  const Answering model = answering_model();
  const std::vector<int32_t> endless(static_cast<std::size_t>(model.decoder->config().max_position), 1);
  EXPECT_THROW(Evaluator({task_of("t", {asked(endless, {1})})}, nullptr, model.decoder->config()), DataError);
}

TEST(Evaluate, PromptsAreRowsToCalibrateOn) {
  const Answering model = answering_model();
  const auto rows = Evaluator({task_of("t", {asked(model.prompt, model.answer), asked({1, 2}, {3})})}, nullptr, model.decoder->config()).prompts();
  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->row(0).at(0).ids, model.prompt);
  EXPECT_EQ(rows->row(1).at(0).is_target, (std::vector<std::uint8_t>{0, 0}));
}

}  // namespace
}  // namespace scalewright
