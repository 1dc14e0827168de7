// inspect: what a file or folder of ours, or a model, holds.
#include "app/command.h"
#include "app/inspection.h"

namespace scalewright {

namespace {

class InspectCommand : public Command {
 public:
  std::string name() const override { return "inspect"; }
  std::string summary() const override { return "what a checkpoint, export, model, token shard or safetensors file holds"; }
  std::vector<Option> options() override { return {{"path", "a file or folder", &path_, true}}; }

  ExitCode run(Context& context) override {
    const OrderedJson document = inspect_path(path_);
    if (context.common.json) {
      print_json(document);
    } else {
      std::fputs(describe_inspection(document).c_str(), stdout);
    }
    return ExitCode::kOk;
  }

 private:
  std::string path_;
};

}  // namespace

std::unique_ptr<Command> make_inspect_command() { return std::make_unique<InspectCommand>(); }

}  // namespace scalewright
