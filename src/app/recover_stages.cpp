#include "app/recover_stages.h"

#include <sstream>

#include "base/error.h"
#include "base/failpoint.h"
#include "eval/statistics.h"
#include "export/verify.h"
#include "store/checkpoint.h"
#include "store/files.h"
#include "store/safetensors.h"

namespace scalewright {
namespace {

constexpr int64_t kDefaultEvaluations = 4;   // checkpoints scored when evaluate.every is not given

// Lines of the resolved configuration that differ, "was -> is".
std::string configuration_difference(const std::string& before, const std::string& now) {
  std::istringstream a(before), b(now);
  std::string left, right, result;
  while (std::getline(a, left) && std::getline(b, right))
    if (left != right) result += fmt::format("\n  {} -> {}", left, right);
  return result;
}

OrderedJson summary_of(const Scores& scores) {
  OrderedJson json = {{"average", scores.average()}, {"tasks", OrderedJson::object()}};
  for (const TaskScore& task : scores.tasks) json["tasks"][task.name] = task.accuracy();
  if (scores.divergence) {
    json["fkl"] = scores.divergence->fkl;
    json["top1_agreement"] = scores.divergence->top1_agreement;
  }
  return json;
}

// NaN has no JSON: nothing was lost, so nothing can be recovered.
OrderedJson share_or_null(double share) { return std::isfinite(share) ? OrderedJson(share) : OrderedJson(nullptr); }

}  // namespace

void Recovery::check(const Config& config) {
  if (config.evaluate.tasks.empty())
    throw UserError("evaluate.tasks is missing\nhint: evaluate: {tasks: FOLDER} names the task files by which recovery is judged");
  if (config.quantize.numerics != "deploy")
    throw UserError("recover exports what it trains, which mcore_qad numerics do not allow\nhint: quantize.numerics: deploy, or use train");
  read_tasks(config.evaluate.tasks, config.evaluate.limit);
}

Recovery::Recovery(const Config& config, Context& context) : context_(context), session_(open_session(config)) {
  const EvaluateSection& evaluate = session_.config.evaluate;
  check(config);
  every_ = evaluate.every > 0 ? evaluate.every : std::max<int64_t>(1, (session_.config.train.steps + kDefaultEvaluations - 1) / kDefaultEvaluations);
  std::vector<Task> tasks = read_tasks(evaluate.tasks, evaluate.limit);
  if (!is_tokenized(tasks)) text_ = std::make_unique<TextWorker>(session_.model_folder);
  evaluator_ = std::make_unique<Evaluator>(std::move(tasks), text_.get(), session_.model);
  claim_folder();
  rows_ = open_session_rows(session_, context_.log);
}

void Recovery::claim_folder() {
  Config lasting = session_.config;
  lasting.train.resume = "auto";   // how this call continues is not part of what the run is
  const std::string now = dump_config(lasting);
  const fs::path path = session_.run / "config.yaml";
  if (fs::exists(path)) {
    const std::string before = read_file(path);
    if (before != now)
      throw UserError(fmt::format("{}: this run was started with another configuration:{}\nhint: give another output.path, or remove the folder",
                                  session_.run.string(), configuration_difference(before, now)));
    context_.log.info("continuing the run in {}", session_.run.string());
  } else {
    fs::create_directories(session_.run / "scores");
    write_file_atomic(path, now);
  }
  context_.log.add_file((session_.run / "log.txt").string());
}

void Recovery::journal(const std::string& stage, OrderedJson facts) {
  OrderedJson line = {{"stage", stage}};
  line.update(facts);
  append_line(session_.run / "journal.jsonl", line.dump(), true);
  failpoint("recover." + stage + ".done");
}

Decoder& Recovery::decoder() {
  if (decoder_) return *decoder_;
  const bool prepared = fs::exists(ptq_path());
  decoder_ = open_session_decoder(session_, context_, *rows_.train, prepared);
  if (prepared) {
    decoder_->load_quantizer_state(load_tensors(ptq_path()), ptq_path().string());
  } else {
    fs::create_directories(ptq_path().parent_path());
    save_tensors(ptq_path(), decoder_->quantizer_state());
    journal("calibrate", {{"file", ptq_path().string()}});
  }
  return *decoder_;
}

Scores Recovery::score(const std::string& name, Mode mode, const std::string& quantization) {
  if (fs::exists(scores_path(name))) {
    context_.log.info("{}: scored before", name);
    return read_scores(scores_path(name));
  }
  context_.log.info("scoring {}", name);
  const EvaluateSection& options = session_.config.evaluate;
  const Reference reference{options.divergence ? &decoder() : nullptr, Mode::kTeacher};
  Scores scores = evaluator_->evaluate(decoder(), mode, reference, {.batch = options.batch, .max_new_tokens = options.max_new_tokens}, context_.log).scores;
  scores.model = session_.model_folder.string();
  scores.quantization = quantization;
  write_scores(scores_path(name), scores);
  context_.log.info("{}: average {:.4f}{}", name, scores.average(), scores.divergence ? fmt::format(", divergence {:.5f}", scores.divergence->fkl) : "");
  journal(name, {{"average", scores.average()}, {"scores", scores_path(name).string()}});
  return scores;
}

Scores Recovery::score_bf16() { return score("bf16", Mode::kTeacher, "none"); }

Scores Recovery::score_ptq() { return score("ptq", Mode::kStudent, session_.config.quantize.format); }

bool Recovery::is_scored_step(int64_t step) const { return step > 0 && (step % every_ == 0 || step == session_.config.train.steps); }

QuantizerState Recovery::checkpoint_state(int64_t step) const {
  QuantizerState state;
  for (auto& [name, tensor] : load_checkpoint(checkpoint_path(session_.run / "checkpoints", step)).tensors)
    if (name.starts_with("alpha/") || name.starts_with("ref/")) state[name] = tensor;
  return state;
}

Candidate Recovery::score_checkpoint(int64_t step) {
  return {step, score(fmt::format("step_{}", step), Mode::kStudent, fmt::format("{}, step {}", session_.config.quantize.format, step))};
}

std::vector<Candidate> Recovery::train_and_score() {
  Config config = session_.config;
  const int64_t last = config.train.steps;
  config.train.save_every = every_;
  config.train.keep_last = last / every_ + 2;   // all candidates stay until the best is known
  std::map<int64_t, Candidate> scored;
  auto unscored = [&](int64_t step) { return is_scored_step(step) && !scored.count(step); };
  auto finished = [&] {
    for (int64_t step = every_; step < last; step += every_)
      if (!fs::exists(scores_path(fmt::format("step_{}", step)))) return false;
    return fs::exists(scores_path(fmt::format("step_{}", last)));
  };
  if (!finished()) {
    // Checkpoints of an interrupted run that were saved but not scored.
    for (int64_t step : list_checkpoints(session_.run / "checkpoints")) {
      if (!unscored(step)) continue;
      if (!fs::exists(scores_path(fmt::format("step_{}", step))))
        decoder().load_quantizer_state(checkpoint_state(step), fmt::format("checkpoint of step {}", step));
      scored.emplace(step, score_checkpoint(step));
    }
    decoder().load_quantizer_state(load_tensors(ptq_path()), ptq_path().string());   // a fresh start begins there
    SelfTeacher teacher(decoder());
    TrainInputs inputs{decoder(), teacher, *rows_.train, rows_.validation.get(), config, session_.run, context_.mesh, context_.log,
                       session_identity(session_, rows_, context_.compute)};
    inputs.on_checkpoint = [&](int64_t step) {
      if (unscored(step)) scored.emplace(step, score_checkpoint(step));
    };
    const TrainOutcome outcome = train(inputs);
    journal("train", {{"steps", outcome.steps}, {"tokens", outcome.tokens}, {"skipped", outcome.skipped}});
  }
  std::vector<Candidate> candidates;
  for (int64_t step = every_; step < last; step += every_) candidates.push_back(score_checkpoint(step));
  candidates.push_back(score_checkpoint(last));
  return candidates;
}

const Candidate& Recovery::best(const std::vector<Candidate>& candidates) {
  SW_CHECK(!candidates.empty(), "no checkpoint was scored");
  const auto divergence = [](const Candidate& c) { return c.scores.divergence ? c.scores.divergence->fkl : 0.0; };
  return *std::min_element(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    if (a.scores.average() != b.scores.average()) return a.scores.average() > b.scores.average();
    if (divergence(a) != divergence(b)) return divergence(a) < divergence(b);
    return a.step < b.step;
  });
}

bool Recovery::is_whole_export(const Candidate& candidate) const {
  try {
    return verify_export(session_.model, *session_.weights, session_.plan, checkpoint_state(candidate.step), export_path()).ok();
  } catch (const DataError&) {
    return false;
  }
}

void Recovery::export_best(const Candidate& candidate) {
  const std::string marker = fmt::format("{{\"step\": {}}}\n", candidate.step);
  const fs::path done = session_.run / "exported.json";
  if (fs::exists(done) && fs::exists(export_path()) && read_file(done) == marker) {
    if (is_whole_export(candidate)) return context_.log.info("exported before");
    context_.log.warning("{}: the export was changed since; exporting again", export_path().string());
    fs::remove_all(export_path());
  }
  context_.log.info("exporting step {} to {}", candidate.step, export_path().string());
  export_checkpoint(session_.model, *session_.weights, session_.plan, checkpoint_state(candidate.step), export_path(),
                    {parse_size(session_.config.export_.shard_size)}, context_.log);
  write_file_atomic(done, marker);
  journal("export", {{"step", candidate.step}, {"folder", export_path().string()}});
}

bool Recovery::verify_best(const Candidate& candidate) {
  const VerifyReport report = verify_export(session_.model, *session_.weights, session_.plan, checkpoint_state(candidate.step), export_path());
  write_file_atomic(session_.run / "verify.json", to_json(report).dump(2) + "\n");
  for (const std::string& fault : report.faults) context_.log.error("verify: {}", fault);
  context_.log.info("verified {}: {}", export_path().string(), report.ok() ? "every dequantized weight equals the trained student's" : "DIFFERENCES");
  journal("verify", {{"step", candidate.step}, {"verified", report.ok()}});
  return report.ok();
}

OrderedJson Recovery::summarize(const Scores& bf16, const Scores& ptq, const Candidate& best, bool verified) {
  OrderedJson summary;
  summary["bf16"] = summary_of(bf16);
  summary["ptq"] = summary_of(ptq);
  summary["qad"] = summary_of(best.scores);
  summary["recovered"] = share_or_null(recovered_share(bf16.average(), ptq.average(), best.scores.average()));
  if (ptq.divergence && best.scores.divergence)
    summary["recovered_divergence"] = share_or_null(recovered_share(0.0, ptq.divergence->fkl, best.scores.divergence->fkl));
  summary["format"] = session_.config.quantize.format;
  summary["step"] = best.step;
  summary["export"] = export_path().string();
  summary["verified"] = verified;
  write_file_atomic(session_.run / "summary.json", summary.dump(2) + "\n");
  return summary;
}

std::string recovery_table(const Scores& bf16, const Scores& ptq, const Scores& qad) {
  auto share = [](double a, double b, double c) {
    const double value = recovered_share(a, b, c);
    return std::isfinite(value) ? fmt::format("{:.0f}%", 100 * value) : std::string("-");
  };
  std::string text = fmt::format("{:<16}{:>8}{:>8}{:>8}{:>12}\n", "task", "BF16", "PTQ", "QAD", "recovered");
  auto row = [&](const std::string& name, double a, double b, double c) {
    text += fmt::format("{:<16}{:>8.3f}{:>8.3f}{:>8.3f}{:>12}\n", name, a, b, c, share(a, b, c));
  };
  for (const TaskScore& task : bf16.tasks) {
    const TaskScore *p = ptq.find(task.name), *q = qad.find(task.name);
    if (p && q) row(task.name, task.accuracy(), p->accuracy(), q->accuracy());
  }
  row("average", bf16.average(), ptq.average(), qad.average());
  if (ptq.divergence && qad.divergence)
    text += fmt::format("{:<16}{:>8}{:>8.4f}{:>8.4f}{:>12}\n", "divergence", "0", ptq.divergence->fkl, qad.divergence->fkl,
                        share(0, ptq.divergence->fkl, qad.divergence->fkl));
  return text;
}

}  // namespace scalewright
