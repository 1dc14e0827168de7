// eval: task accuracy, divergence to the BF16 model and perplexity, of a model or its quantized student.
#include "app/command.h"
#include "app/open_model.h"
#include "base/error.h"
#include "eval/evaluate.h"
#include "eval/statistics.h"
#include "store/files.h"

namespace scalewright {

namespace {

std::string format_table(const Scores& scores) {
  std::string out = fmt::format("{:<16} {:>6} {:>8} {:>9} {:>8}\n", "task", "n", "correct", "accuracy", "SE");
  std::vector<Estimate> estimates;
  for (const TaskScore& task : scores.tasks) {
    out += fmt::format("{:<16} {:>6} {:>8g} {:>9.4f} {:>8.4f}\n", task.name, task.n(), task.correct(), task.accuracy(), task.standard_error());
    estimates.push_back({task.accuracy(), task.standard_error()});
  }
  const Estimate all = average(estimates);
  out += fmt::format("{:<16} {:>6} {:>8} {:>9.4f} {:>8.4f}\n", "average", "", "", all.value, all.stderr_);
  if (const auto& d = scores.divergence)
    out += fmt::format("fkl {:.5f} (SE {:.5f}), top-1 agreement {:.4f}, over {} answer tokens\n", d->fkl, d->fkl_stderr, d->top1_agreement, d->tokens);
  if (scores.perplexity) out += fmt::format("perplexity of the right answers {:.4f}\n", *scores.perplexity);
  return out;
}

std::string outcomes_as_lines(const std::vector<QuestionOutcome>& outcomes) {
  std::string out;
  for (const QuestionOutcome& outcome : outcomes) {
    const OrderedJson line = {{"task", outcome.task},     {"question", outcome.question}, {"run", outcome.run},
                              {"output", outcome.output}, {"stopped", outcome.stopped},   {"correct", outcome.correct}};
    out += line.dump() + "\n";
  }
  return out;
}

class EvalCommand : public Command {
 public:
  std::string name() const override { return "eval"; }
  std::string summary() const override { return "task accuracy, divergence to the BF16 model, perplexity"; }

  std::vector<Option> options() override {
    std::vector<Option> all = model_options(choice_);
    all.push_back({"--tasks", "folder of task files (*.jsonl), or one file", &tasks_});
    all.push_back({"--limit", "questions a task, from its beginning (0: all)", &limit_});
    all.push_back({"--reference", "folder of another model to measure the divergence from (default: --model without quantizers)", &reference_});
    all.push_back({"--batch", "sequences that go through the model together", &batch_});
    all.push_back({"--max-new-tokens", "longest generated answer, where a task does not say", &max_new_tokens_});
    all.push_back({"--out", "write scores.json to this file", &out_});
    all.push_back({"--outputs", "write every answer to this file (JSON lines)", &outputs_});
    return all;
  }

  ExitCode run(Context& context) override;

 private:
  void apply(const EvaluateSection& section, int64_t seed);

  ModelChoice choice_;
  std::string tasks_, reference_, out_, outputs_;
  std::optional<int64_t> limit_, batch_, max_new_tokens_;
  EvaluateOptions options_;
  bool divergence_ = true;
};

/// Options of the command line, else the configuration's.
void EvalCommand::apply(const EvaluateSection& section, int64_t seed) {
  if (tasks_.empty()) tasks_ = section.tasks;
  if (tasks_.empty()) throw UserError("--tasks is missing\nhint: a folder of task files: one JSON line a question, {\"prompt\": ..., \"answer\": ...}");
  limit_ = limit_.value_or(section.limit);
  options_.batch = batch_.value_or(section.batch);
  options_.max_new_tokens = max_new_tokens_.value_or(section.max_new_tokens);
  options_.seed = static_cast<std::uint64_t>(seed);
  divergence_ = section.divergence;
  if (*limit_ < 0) throw UserError(fmt::format("--limit {}: at least 0 is expected (0: all questions)", *limit_));
  if (options_.batch < 1) throw UserError(fmt::format("--batch {}: at least 1 is expected", options_.batch));
  if (options_.max_new_tokens < 1) throw UserError(fmt::format("--max-new-tokens {}: at least 1 is expected", options_.max_new_tokens));
}

ExitCode EvalCommand::run(Context& context) {
  const Config config = command_config(context.common);
  apply(config.evaluate, context.common.seed.value_or(0));
  const ModelSource source(choice_, config);
  std::vector<Task> tasks = read_tasks(tasks_, *limit_);
  const auto text = is_tokenized(tasks) ? nullptr : source.open_text();
  const Evaluator evaluator(std::move(tasks), text.get(), source.config());
  const auto prompts = evaluator.prompts();
  const std::string what = fmt::format("{} ({}) on {} tasks, {} questions", source.folder().string(), source.quantization(), evaluator.tasks().size(), prompts->size());
  if (context.common.dry_run) {
    const ModelWeights weights(source.folder(), source.config());
    return would(context, fmt::format("evaluate {}", what));
  }

  context.log.info("evaluating {}", what);
  const auto decoder = source.open_decoder(context, *prompts);
  const Mode mode = source.quantized() ? Mode::kStudent : Mode::kTeacher;
  std::unique_ptr<Decoder> other;
  Reference reference;
  if (divergence_ && !reference_.empty()) {
    other = open_plain_decoder(context, resolve_model_folder(reference_));
    if (other->config().vocabulary != source.config().vocabulary)
      throw DataError(fmt::format("{}: a vocabulary of {}, the model has {}\nhint: models must share their tokenizer to be compared token by token", reference_,
                                  other->config().vocabulary, source.config().vocabulary));
    reference.decoder = other.get();
  } else if (divergence_ && source.quantized()) {
    reference.decoder = decoder.get();
  }
  Evaluation evaluation = evaluator.evaluate(*decoder, mode, reference, options_, context.log);

  Scores& scores = evaluation.scores;
  scores.model = choice_.model.empty() ? config.model.path : choice_.model;
  scores.quantization = source.quantization();
  if (!divergence_) scores.divergence.reset();
  scores.details = source.describe();
  scores.details["reference"] = reference_.empty() ? scores.model : reference_;
  scores.details["tasks_path"] = tasks_;
  scores.details["dtype"] = c10::toString(context.compute.dtype);
  scores.details["seed"] = options_.seed;
  scores.details["max_new_tokens"] = options_.max_new_tokens;
  if (text) scores.details["tokenizer"] = text->tokenizer_hash();
  if (!out_.empty()) write_scores(out_, scores);
  if (!outputs_.empty()) write_file_atomic(outputs_, outcomes_as_lines(evaluation.outcomes));
  if (context.common.json) print_json(to_json(scores));
  else std::fputs(format_table(scores).c_str(), stdout);
  return ExitCode::kOk;
}

}  // namespace

std::unique_ptr<Command> make_eval_command() { return std::make_unique<EvalCommand>(); }

}  // namespace scalewright
