// Task accuracy, divergence from a reference model, and perplexity of a model: what scores.json holds.
#pragma once
#include <string>
#include <vector>

#include "base/log.h"
#include "eval/likelihood.h"
#include "eval/prompt_rows.h"
#include "eval/scores.h"
#include "eval/task.h"

namespace scalewright {

class EvaluationProgress;

struct EvaluateOptions {
  int64_t batch = 64;            // sequences that go through the model together
  int64_t max_new_tokens = 64;   // where the task does not say otherwise
  std::uint64_t seed = 0;        // of sampled answers: run r of a task is drawn with seed + r
};

/// What a model answered to one question.
struct QuestionOutcome {
  std::string task;
  int64_t question = 0, run = 0;
  std::string output;            // text before the stop token; token ids as JSON for tasks given in ids; the chosen index for choices
  bool stopped = true;           // a stop token came
  bool correct = false;
};

struct Evaluation {
  Scores scores;
  std::vector<QuestionOutcome> outcomes;   // by task, question, run
};

/// Tasks, tokenized once, on which any number of models with the same tokenizer can be evaluated.
///
/// Generated answers are right when a stop token ended them and their text, trimmed, equals the trimmed answer (tasks given in
/// token ids: when the ids are equal). A choice is right when its log-likelihood is the largest (the first of equal ones).
/// Divergence and perplexity are over the tokens of the right answers given the prompt, teacher-forced: the answer and the stop token
/// (for choices the right choice, without a stop token). The stop token is the one with which the model's chat template ends an
/// assistant turn, if it is a stop token of the model; else the first stop token of the model.
class Evaluator {
 public:
  /// `text` may be nullptr when all tasks are given in token ids (else DataError); it must outlive the evaluator.
  Evaluator(std::vector<Task> tasks, TextWorker* text, const ModelConfig& config);
  ~Evaluator();

  const std::vector<Task>& tasks() const { return tasks_; }
  /// Prompts of all tasks, to calibrate on where there is no other data.
  std::unique_ptr<RowSource> prompts() const;

  /// `reference` without a decoder: no divergence is reported, but for Mode::kTeacher, which is its own reference (fkl 0).
  /// scores.model and scores.quantization are left to the caller. Visits the failpoint eval.task after each task.
  Evaluation evaluate(Decoder& decoder, Mode mode, const Reference& reference, const EvaluateOptions& options, Log& log) const;

 private:
  TaskScore run_task(std::size_t task, Decoder& decoder, Mode mode, const EvaluateOptions& options, EvaluationProgress& progress,
                     std::vector<QuestionOutcome>& outcomes) const;
  void generate_answers(std::size_t task, Decoder& decoder, Mode mode, const EvaluateOptions& options, EvaluationProgress& progress,
                        std::vector<QuestionOutcome>& outcomes) const;
  void choose_answers(std::size_t task, Decoder& decoder, Mode mode, const EvaluateOptions& options, EvaluationProgress& progress,
                      std::vector<QuestionOutcome>& outcomes) const;
  std::vector<Continuation> right_answers(std::size_t task) const;
  void judge_text(std::size_t task, std::vector<QuestionOutcome>& outcomes, const std::vector<std::vector<int32_t>>& ids) const;

  std::vector<Task> tasks_;
  std::vector<std::vector<TokenizedQuestion>> questions_;   // per task
  TextWorker* text_;
  std::optional<int32_t> stop_token_;                       // none: the model names none
};

}  // namespace scalewright
