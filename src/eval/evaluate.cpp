#include "eval/evaluate.h"

#include "base/error.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "eval/generation.h"
#include "eval/progress.h"
#include "eval/statistics.h"

namespace scalewright {

namespace {

/// The token with which the chat template ends an assistant turn: the last target of a rendered conversation.
std::optional<int32_t> template_stop_token(TextWorker& text, const std::vector<int64_t>& stops) {
  const std::string conversation = R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})";
  std::vector<EncodedSample> samples;
  try {
    samples = text.encode_lines({conversation}, {.format = "sharegpt", .loss_on = "assistant", .seq_len = 4096});
  } catch (const DataError&) {
    return std::nullopt;   // a model without a chat template
  }
  if (samples.size() != 1 || !samples[0].error.empty()) return std::nullopt;
  const EncodedSample& sample = samples[0];
  for (std::size_t i = sample.ids.size(); i-- > 0;)
    if (sample.is_target[i] && std::find(stops.begin(), stops.end(), sample.ids[i]) != stops.end()) return sample.ids[i];
  return std::nullopt;
}

std::string trimmed(const std::string& text) {
  const char* kBlank = " \t\r\n\f\v";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

/// Sampled answers of a question must not depend on which other tasks or questions are evaluated.
std::uint64_t random_stream(const std::string& task, std::size_t question) {
  return std::stoull(hash_hex(task).substr(0, 16), nullptr, 16) + question;
}

bool is_choice(const Question& question) { return !question.choices.empty(); }

/// A sequence longer than the model's positions would be computed, but not as the model was meant.
void check_length(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer, const ModelConfig& config, const std::string& where) {
  const std::size_t length = prompt.size() + answer.size() + 1;
  if (config.max_position == 0 || length <= static_cast<std::size_t>(config.max_position)) return;
  throw DataError(fmt::format("{}: prompt and answer have {} tokens, the model has {} positions\nhint: leave the question out", where, length,
                              config.max_position));
}

Divergence divergence_of(const std::vector<ContinuationScore>& scores) {
  std::vector<double> totals, counts;
  Divergence out;
  int64_t agree = 0;
  for (const ContinuationScore& score : scores) {
    totals.push_back(score.fkl);
    counts.push_back(static_cast<double>(score.tokens));
    out.tokens += score.tokens;
    agree += score.top1_agree;
  }
  const Estimate fkl = clustered_mean(totals, counts);
  out.fkl = fkl.value;
  out.fkl_stderr = fkl.stderr_;
  out.top1_agreement = static_cast<double>(agree) / static_cast<double>(out.tokens);
  return out;
}

double perplexity_of(const std::vector<ContinuationScore>& scores) {
  double log_likelihood = 0;
  int64_t tokens = 0;
  for (const ContinuationScore& score : scores) {
    log_likelihood += score.log_likelihood;
    tokens += score.tokens;
  }
  return std::exp(-log_likelihood / static_cast<double>(tokens));
}

std::string task_kind(const Task& task) {
  const auto choices = std::count_if(task.questions.begin(), task.questions.end(), is_choice);
  if (choices == 0) return "generate";
  return choices == static_cast<std::ptrdiff_t>(task.questions.size()) ? "choose" : "mixed";
}

}  // namespace

Evaluator::Evaluator(std::vector<Task> tasks, TextWorker* text, const ModelConfig& config) : tasks_(std::move(tasks)), text_(text) {
  for (const Task& task : tasks_) {
    questions_.push_back(tokenize(task, text_, config.vocabulary));
    for (std::size_t q = 0; q < task.questions.size(); ++q) {
      const TokenizedQuestion& question = questions_.back()[q];
      check_length(question.prompt, question.answer, config, task.questions[q].where);
      for (const auto& choice : question.choices) check_length(question.prompt, choice, config, task.questions[q].where);
    }
  }
  if (text_) stop_token_ = template_stop_token(*text_, config.eos);
  if (!stop_token_ && !config.eos.empty()) stop_token_ = static_cast<int32_t>(config.eos.front());
}

Evaluator::~Evaluator() = default;

std::unique_ptr<RowSource> Evaluator::prompts() const {
  std::vector<std::vector<int32_t>> ids;
  for (const auto& task : questions_)
    for (const TokenizedQuestion& question : task) ids.push_back(question.prompt);
  return prompt_rows(std::move(ids));
}

std::vector<Continuation> Evaluator::right_answers(std::size_t task) const {
  std::vector<Continuation> out;
  for (std::size_t q = 0; q < questions_[task].size(); ++q) {
    const TokenizedQuestion& question = questions_[task][q];
    if (is_choice(tasks_[task].questions[q])) {
      out.push_back({question.prompt, question.choices[tasks_[task].questions[q].right]});
      continue;
    }
    out.push_back({question.prompt, question.answer});
    if (stop_token_) out.back().tokens.push_back(*stop_token_);
  }
  return out;
}

/// Decodes generated answers (one a given outcome) and marks the right ones.
void Evaluator::judge_text(std::size_t task, std::vector<QuestionOutcome>& outcomes, const std::vector<std::vector<int32_t>>& ids) const {
  std::vector<std::vector<int32_t>> to_decode;
  std::vector<QuestionOutcome*> decoded;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    QuestionOutcome& outcome = outcomes[i];
    if (tasks_[task].questions[outcome.question].answer.is_string()) {
      to_decode.push_back(ids[i]);
      decoded.push_back(&outcome);
    } else {
      outcome.output = Json(ids[i]).dump();
      outcome.correct = outcome.stopped && ids[i] == questions_[task][outcome.question].answer;
    }
  }
  if (to_decode.empty()) return;
  const std::vector<std::string> texts = text_->decode(to_decode);
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    const auto& answer = tasks_[task].questions[decoded[i]->question].answer.get_ref<const std::string&>();
    decoded[i]->output = texts[i];
    decoded[i]->correct = decoded[i]->stopped && trimmed(texts[i]) == trimmed(answer);
  }
}

void Evaluator::generate_answers(std::size_t task, Decoder& decoder, Mode mode, const EvaluateOptions& options, EvaluationProgress& progress,
                                 std::vector<QuestionOutcome>& outcomes) const {
  const Task& t = tasks_[task];
  std::vector<Prompt> prompts;
  std::vector<int64_t> indices;
  for (std::size_t q = 0; q < t.questions.size(); ++q) {
    if (is_choice(t.questions[q])) continue;
    prompts.push_back({questions_[task][q].prompt, random_stream(t.name, q)});
    indices.push_back(static_cast<int64_t>(q));
  }
  if (prompts.empty()) return;
  GenerationOptions generation;
  generation.max_new_tokens = t.max_new_tokens.value_or(options.max_new_tokens);
  generation.batch = options.batch;
  generation.temperature = t.sampling.temperature;
  generation.top_p = t.sampling.top_p;
  generation.progress = [&](int64_t sequences) { progress.add(sequences); };
  for (int64_t run = 0; run < t.sampling.runs; ++run) {
    generation.seed = options.seed + static_cast<std::uint64_t>(run);
    const std::vector<Generated> answers = generate(decoder, mode, prompts, generation);
    std::vector<QuestionOutcome> of_run;
    std::vector<std::vector<int32_t>> ids;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      of_run.push_back({.task = t.name, .question = indices[i], .run = run, .output = "", .stopped = answers[i].stopped, .correct = false});
      ids.push_back(answers[i].ids);
    }
    judge_text(task, of_run, ids);
    outcomes.insert(outcomes.end(), of_run.begin(), of_run.end());
  }
}

void Evaluator::choose_answers(std::size_t task, Decoder& decoder, Mode mode, const EvaluateOptions& options, EvaluationProgress& progress,
                               std::vector<QuestionOutcome>& outcomes) const {
  const Task& t = tasks_[task];
  std::vector<Continuation> continuations;
  for (std::size_t q = 0; q < t.questions.size(); ++q)
    for (const auto& choice : questions_[task][q].choices) continuations.push_back({questions_[task][q].prompt, choice});
  if (continuations.empty()) return;
  LikelihoodOptions likelihood;
  likelihood.batch = options.batch;
  likelihood.progress = [&](int64_t count) { progress.add(count); };
  const std::vector<ContinuationScore> scores = score_continuations(decoder, mode, {}, continuations, likelihood);
  auto score = scores.begin();
  for (std::size_t q = 0; q < t.questions.size(); ++q) {
    if (!is_choice(t.questions[q])) continue;
    std::vector<double> values;
    for (std::size_t c = 0; c < t.questions[q].choices.size(); ++c, ++score)
      values.push_back(t.length_normalised ? score->log_likelihood / static_cast<double>(score->tokens) : score->log_likelihood);
    const int64_t best = std::max_element(values.begin(), values.end()) - values.begin();
    outcomes.push_back({.task = t.name, .question = static_cast<int64_t>(q), .run = 0, .output = std::to_string(best), .stopped = true,
                        .correct = best == t.questions[q].right});
  }
}

TaskScore Evaluator::run_task(std::size_t task, Decoder& decoder, Mode mode, const EvaluateOptions& options, EvaluationProgress& progress,
                              std::vector<QuestionOutcome>& outcomes) const {
  std::vector<QuestionOutcome> own;
  generate_answers(task, decoder, mode, options, progress, own);
  const std::size_t generated = own.size();
  const auto stopped = std::count_if(own.begin(), own.end(), [](const QuestionOutcome& o) { return o.stopped; });
  choose_answers(task, decoder, mode, options, progress, own);
  std::sort(own.begin(), own.end(), [](const QuestionOutcome& a, const QuestionOutcome& b) { return std::pair(a.question, a.run) < std::pair(b.question, b.run); });

  TaskScore score;
  score.name = tasks_[task].name;
  score.kind = task_kind(tasks_[task]);
  score.runs = tasks_[task].sampling.runs;
  score.hash = tasks_[task].hash;
  if (generated > 0) score.stopped = static_cast<double>(stopped) / static_cast<double>(generated);
  std::vector<double> right(tasks_[task].questions.size(), 0), asked(right.size(), 0);
  for (const QuestionOutcome& outcome : own) {
    right[outcome.question] += outcome.correct ? 1 : 0;
    asked[outcome.question] += 1;
  }
  for (std::size_t q = 0; q < right.size(); ++q) score.items.push_back(right[q] / asked[q]);
  outcomes.insert(outcomes.end(), own.begin(), own.end());
  return score;
}

Evaluation Evaluator::evaluate(Decoder& decoder, Mode mode, const Reference& reference, const EvaluateOptions& options, Log& log) const {
  int64_t answers = 0;   // generated answers, scored choices, scored right answers
  for (const Task& task : tasks_)
    for (const Question& question : task.questions)
      answers += 1 + (is_choice(question) ? static_cast<int64_t>(question.choices.size()) : task.sampling.runs);
  EvaluationProgress progress(log, "evaluate", answers);
  LikelihoodOptions likelihood;
  likelihood.batch = options.batch;
  likelihood.progress = [&](int64_t count) { progress.add(count); };

  Evaluation out;
  std::vector<ContinuationScore> right;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    progress.stage(tasks_[t].name);
    out.scores.tasks.push_back(run_task(t, decoder, mode, options, progress, out.outcomes));
    const auto scores = score_continuations(decoder, mode, reference, right_answers(t), likelihood);
    right.insert(right.end(), scores.begin(), scores.end());
    failpoint("eval.task");
  }
  out.scores.perplexity = perplexity_of(right);
  if (reference.decoder) {
    out.scores.divergence = divergence_of(right);
  } else if (mode == Mode::kTeacher) {
    out.scores.divergence = divergence_of(right);   // sums of fkl are 0
    out.scores.divergence->top1_agreement = 1;
  }
  return out;
}

}  // namespace scalewright
