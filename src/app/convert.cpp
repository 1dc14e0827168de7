// convert: a Hugging Face folder to a reshardable checkpoint, and back.
#include "app/command.h"
#include "export/conversion.h"
#include "export/export.h"
#include "model/config.h"

namespace scalewright {
namespace {

class ConvertCommand : public Command {
 public:
  std::string name() const override { return "convert"; }
  std::string summary() const override { return "a Hugging Face folder to a reshardable checkpoint, and back"; }
  std::vector<Option> options() override {
    return {{"--model", "Hugging Face folder, or a checkpoint of this command (which then becomes the folder again)", &model_, true},
            {"--shard-size", "largest shard of a checkpoint", &shard_size_},
            {"--out", "the folder to write", &out_, true}};
  }
  RankUse ranks() const override { return RankUse::kAll; }

  ExitCode run(Context& context) override {
    const int64_t shard_bytes = parse_size(shard_size_);
    const bool back = look_at_checkpoint(model_) == CheckpointFolder::kOurs;
    if (context.common.dry_run) return would(context, fmt::format("convert {} to {}", model_, back ? "the Hugging Face folder that it was" : "a checkpoint"));
    const bool first = context.mesh.first();
    if (!back) {
      model_to_checkpoint(resolve_model_folder(model_), out_, shard_bytes, context.mesh.world(), context.log);
    } else {
      if (first) checkpoint_to_model(model_, out_, context.log);
      context.mesh.world().barrier();
    }
    if (!first) return ExitCode::kOk;
    const char* kind = back ? "model" : "checkpoint";
    if (context.common.json) print_json({{"out", out_}, {"kind", kind}});
    else print_text(fmt::format("{} written to {}\n", kind, out_));
    return ExitCode::kOk;
  }

 private:
  std::string model_, out_, shard_size_ = "5GB";
};

}  // namespace

std::unique_ptr<Command> make_convert_command() { return std::make_unique<ConvertCommand>(); }

}  // namespace scalewright
