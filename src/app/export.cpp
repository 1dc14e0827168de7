// export: a trained run or checkpoint to a folder that serving engines load.
#include "app/command.h"
#include "app/trained_scales.h"
#include "base/error.h"
#include "export/export.h"
#include "export/verify.h"

namespace scalewright {
namespace {

class ExportCommand : public Command {
 public:
  std::string name() const override { return "export"; }
  std::string summary() const override { return "a trained run or checkpoint to a deployable folder"; }
  std::vector<Option> options() override {
    return {{"--run", "run directory (its best checkpoint, else its newest)", &source_.run},
            {"--checkpoint", "checkpoint folder step_N of a run", &source_.checkpoint},
            {"--model", "BF16 model, when it is not where the run found it", &source_.model},
            {"--step", "step of the run to export", &source_.step},
            {"--to", "dialect of the exported folder", &to_, false, {"compressed-tensors"}},
            {"--shard-size", "largest weight file", &shard_size_},
            {"--out", "the folder to write", &out_, true}};
  }

  ExitCode run(Context& context) override {
    const TrainedScales trained = open_trained_scales(source_);
    if (!trained.warning.empty()) context.log.warning("{}", trained.warning);
    const ExportOptions options{parse_size(shard_size_)};
    check_export_target(out_, trained.weights->folder());
    if (context.common.dry_run) {
      return would(context, fmt::format("export step {} of {} to {}", trained.step, trained.run.string(), out_));
    }
    const ExportReport report = export_checkpoint(trained.model, *trained.weights, trained.plan, trained.state, out_, options, context.log);
    const VerifyReport verified = verify_export(trained.model, *trained.weights, trained.plan, trained.state, out_);
    for (const std::string& fault : verified.faults) context.log.error("verify: {}", fault);
    if (context.common.json)
      print_json({{"out", out_}, {"step", trained.step}, {"tensors", report.tensors}, {"bytes", report.bytes}, {"shards", report.shards}, {"verified", verified.ok()}});
    else
      print_text(fmt::format("exported step {}: {} tensors, {:.1f} MB in {} ({})\n", trained.step, report.tensors, static_cast<double>(report.bytes) / 1e6, out_,
                             verified.ok() ? "verified bit for bit" : "NOT VERIFIED"));
    return verified.ok() ? ExitCode::kOk : ExitCode::kVerdictFailed;
  }

 private:
  TrainedScalesChoice source_;
  std::string to_ = "compressed-tensors", shard_size_ = "5GB", out_;
};

}  // namespace

std::unique_ptr<Command> make_export_command() { return std::make_unique<ExportCommand>(); }

}  // namespace scalewright
