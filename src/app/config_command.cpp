// config: check a configuration file, show it resolved, or print what the schema generates.
#include "app/command.h"
#include "config/schema.h"

namespace scalewright {
namespace {

class ConfigCommand : public Command {
 public:
  std::string name() const override { return "config"; }
  std::string summary() const override {
    return "check a configuration, show it resolved, or print its schema or reference page";
  }
  std::vector<Option> options() override {
    return {
        {"action", "what to do", &action_, true, {"check", "show", "schema", "reference"}},
        {"file", "the YAML file (for check and show; else -c)", &file_},
    };
  }

  ExitCode run(Context& context) override {
    if (action_ == "schema") return print(config_json_schema(), context, true);
    if (action_ == "reference") return print(config_reference_markdown(), context, false);
    CommonOptions common = context.common;
    if (!file_.empty()) common.config = file_;
    if (common.config.empty() && action_ == "check")
      throw UserError("config check needs a file\nhint: scalewright config check run.yaml");
    const Config config = command_config(common);
    return action_ == "check" ? tell_checked(common.config, config, context) : show(config, context);
  }

 private:
  static ExitCode print(const std::string& text, Context& context, bool is_json) {
    if (context.common.json && !is_json) {
      print_json({{"text", text}});
    } else {
      print_text(text);
    }
    return ExitCode::kOk;
  }

  static ExitCode tell_checked(const std::string& file, const Config& config, Context& context) {
    if (context.common.json) {
      print_json({{"file", file}, {"ok", true}, {"dialect", config.dialect}, {"notes", config.notes}});
      return ExitCode::kOk;
    }
    std::string text;
    for (const auto& note : config.notes) text += fmt::format("note: {}\n", note);
    print_text(text + fmt::format("{}: ok\n", file));
    return ExitCode::kOk;
  }

  static ExitCode show(const Config& config, Context& context) {
    if (context.common.json) {
      print_json(config_json(config));
    } else {
      print_text(dump_config(config));
    }
    return ExitCode::kOk;
  }

  std::string action_, file_;
};

}  // namespace

std::unique_ptr<Command> make_config_command() { return std::make_unique<ConfigCommand>(); }

}  // namespace scalewright
