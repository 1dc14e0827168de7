// recover: the whole job. Every stage reads files and writes files, so a killed run continues where it was.
#include "app/recover_stages.h"
#include "app/run_lock.h"
#include "app/stop_handler.h"
#include "base/error.h"

namespace scalewright {
namespace {

class RecoverCommand : public Command {
 public:
  std::string name() const override { return "recover"; }
  std::string summary() const override { return "the whole job: gap, quantization, distillation, evaluation, export, verification; resumes"; }
  std::vector<Option> options() override { return {{"--resume", "auto, never, or a step to continue from", &resume_}}; }

  RankUse ranks() const override { return RankUse::kOne; }
  ExitCode run(Context& context) override {
    Config config = command_config(context.common);
    if (!resume_.empty()) config.train.resume = resume_;
    if (context.common.dry_run) return dry_run(context, config);
    const RunLock lock(config.output.path);
    const StopHandler stoppable(context.common.json);

    Recovery recovery(config, context);
    const Scores bf16 = recovery.score_bf16();
    const Scores ptq = recovery.score_ptq();
    const std::vector<Candidate> candidates = recovery.train_and_score();
    const Candidate& best = Recovery::best(candidates);
    recovery.export_best(best);
    const bool verified = recovery.verify_best(best);
    if (best.scores.average() < ptq.average())
      context.log.warning("training made it worse: the best checkpoint scores {:.4f}, quantization alone {:.4f}\nhint: look at the validation lines; lower train.lr, or train longer on more data",
                          best.scores.average(), ptq.average());
    const OrderedJson summary = recovery.summarize(bf16, ptq, best, verified);

    if (context.common.json) print_json(summary);
    else
      print_text(fmt::format("\n{}\nbest checkpoint: step {}; exported to {} ({})\n", recovery_table(bf16, ptq, best.scores), best.step,
                             summary["export"].get<std::string>(), verified ? "verified bit for bit" : "NOT VERIFIED"));
    return verified ? ExitCode::kOk : ExitCode::kVerdictFailed;
  }

 private:
  static ExitCode dry_run(Context& context, const Config& config) {
    Recovery::check(config);
    const Session session = open_session(config);
    check_inputs(session);
    return would(context, fmt::format("recover {} ({} parameters) in {}: {} projections, {} steps, run directory {}", session.model_folder.string(),
                     parameter_count(session.model), config.quantize.format, session.plan.formats.size(), config.train.steps, session.run.string()));
  }

  std::string resume_;
};

}  // namespace

std::unique_ptr<Command> make_recover_command() { return std::make_unique<RecoverCommand>(); }

}  // namespace scalewright
