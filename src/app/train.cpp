// train: scales by distillation, from a configuration of ours or of MCoreQAD.
#include "app/run_lock.h"
#include "app/session.h"
#include "app/stop_handler.h"
#include "base/error.h"
#include "export/conversion.h"
#include "store/checkpoint.h"
#include "store/files.h"
#include "store/manifest.h"
#include "train/resume.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace scalewright {

namespace {

class TrainCommand : public Command {
 public:
  std::string name() const override { return "train"; }
  std::string summary() const override { return "trains quantization scales by distillation (MCoreQAD YAML is accepted unchanged)"; }
  std::vector<Option> options() override { return {}; }
  RankUse ranks() const override { return RankUse::kAll; }
  ExitCode run(Context& context) override;

 private:
  ExitCode dry_run(Context& context, const Session& session, std::optional<int64_t> resumed) const;
};

/// Refuses a checkpoint of another run before anything is written.
void check_checkpoint(const Session& session, const RunIdentity& identity, int64_t step) {
  const auto folder = checkpoint_path(checkpoints_folder(session.run), step);
  check_same_run(read_manifest(folder / kManifestName).state, session.config, identity, folder.string());
}

OrderedJson to_json(const TrainOutcome& outcome, const Session& session) {
  return {{"steps", outcome.steps},
          {"resumed_from", outcome.resumed_from},
          {"skipped", outcome.skipped},
          {"tokens", outcome.tokens},
          {"loss", outcome.loss},
          {"validation_before", outcome.validation_before.empty() ? OrderedJson(nullptr) : OrderedJson(outcome.validation_before)},
          {"validation", outcome.validation.empty() ? OrderedJson(nullptr) : OrderedJson(outcome.validation)},
          {"best_step", outcome.best_step > 0 ? OrderedJson(outcome.best_step) : OrderedJson(nullptr)},
          {"seconds", outcome.seconds},
          {"run", session.run.string()},
          {"checkpoint", outcome.checkpoint.string()}};
}

std::string final_line(const TrainOutcome& outcome) {
  std::string line = fmt::format("trained {} steps ({} tokens)", outcome.steps, outcome.tokens);
  if (!outcome.validation.empty()) {
    const double after = outcome.validation.at("fkl");
    line += outcome.validation_before.empty() ? fmt::format(", validation fkl {:.5f}", after)
                                              : fmt::format(", validation fkl {:.5f} -> {:.5f}", outcome.validation_before.at("fkl"), after);
  }
  if (outcome.skipped > 0) line += fmt::format(", {} steps skipped", outcome.skipped);
  return line + "; scales in " + outcome.checkpoint.string();
}

ExitCode TrainCommand::dry_run(Context& context, const Session& session, std::optional<int64_t> resumed) const {
  const Config& config = session.config;
  const OrderedJson plan = {{"model", session.model_folder.string()},
                            {"parameters", parameter_count(session.model)},
                            {"format", config.quantize.format},
                            {"numerics", config.quantize.numerics},
                            {"projections", session.plan.formats.size()},
                            {"steps", config.train.steps},
                            {"resume_from", resumed ? OrderedJson(*resumed) : OrderedJson(nullptr)},
                            {"run", session.run.string()}};
  if (context.common.json) print_json(plan);
  else
    fmt::print("would train the {} scales of {} projections of {} for {} steps into {}\n", config.quantize.format, session.plan.formats.size(),
               session.model_folder.string(), config.train.steps, session.run.string());
  return ExitCode::kOk;
}

void check_batches(const TrainSection& train, int64_t data_parallel) {
  const int64_t at_once = train.micro_batch * data_parallel;
  if (train.global_batch % at_once != 0)
    throw UserError(fmt::format("train.global_batch {} is not a multiple of train.micro_batch {} x {} data-parallel ranks\nhint: set train.global_batch to a multiple of {}",
                                train.global_batch, train.micro_batch, data_parallel, at_once));
}

ExitCode TrainCommand::run(Context& context) {
  const StopHandler stoppable(context.common.json);
  Config config = command_config(context.common);
  config.train.global_batch = rows_of_step(config.train, context.mesh.dp().size());   // another number of ranks must not change it silently
  check_batches(config.train, context.mesh.dp().size());
  const bool converts = !config.model.checkpoint.empty() && !context.common.dry_run;
  if (converts) ensure_checkpoint(config.model.checkpoint, resolve_model_folder(config.model.path), context.mesh.world(), context.log);
  Config opened = config;
  if (converts) opened.model.path = config.model.checkpoint;
  Session session = open_session(opened);
  session.config.model.path = config.model.path;   // a run's other commands read the model itself
  const std::optional<int64_t> resumed = resume_step(session.config.train.resume, session.run);
  if (context.common.dry_run) {
    check_inputs(session);
    return dry_run(context, session, resumed);
  }
  std::optional<RunLock> lock;
  if (context.mesh.first()) lock.emplace(session.run);
  const Group& world = context.mesh.world();
  // The first rank prepares raw data; the others find it prepared.
  if (!context.mesh.first()) world.barrier();
  const SessionRows rows = open_session_rows(session, context.log);
  if (context.mesh.first()) world.barrier();
  const RunIdentity identity = session_identity(session, rows, context.compute);
  if (resumed) check_checkpoint(session, identity, *resumed);
  const std::unique_ptr<Decoder> decoder = open_session_decoder(session, context, *rows.train, resumed.has_value());
  std::filesystem::create_directories(session.run);
  if (context.mesh.first()) {
    write_file_atomic(session.run / "config.yaml", dump_config(session.config));
    context.log.add_file((session.run / "log.txt").string());
  }

  SelfTeacher teacher(*decoder);
  const TrainOutcome outcome =
      train({*decoder, teacher, *rows.train, rows.validation.get(), session.config, session.run, context.mesh, context.log, identity});
  if (!context.mesh.first()) return ExitCode::kOk;
  if (context.common.json) print_json(to_json(outcome, session));
  else fmt::print("{}\n", final_line(outcome));
  return ExitCode::kOk;
}

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace scalewright
