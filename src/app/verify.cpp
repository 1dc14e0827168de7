// verify: re-reads an exported folder, compares it with the trained student, and holds it against the rules of serving engines.
#include "app/command.h"
#include "app/trained_scales.h"
#include "base/error.h"
#include "export/loader_rules.h"
#include "export/verify.h"
#include "store/files.h"

namespace scalewright {
namespace {

class VerifyCommand : public Command {
 public:
  std::string name() const override { return "verify"; }
  std::string summary() const override { return "re-reads an export, compares it with the trained student, checks loaders' rules"; }
  std::vector<Option> options() override {
    return {{"--quantized", "the exported folder", &quantized_, true},
            {"--run", "run directory whose trained scales the export must hold", &source_.run},
            {"--checkpoint", "the same, as a checkpoint folder step_N", &source_.checkpoint},
            {"--model", "BF16 model, when it is not where the run found it", &source_.model},
            {"--step", "step of the run (default: the exported one)", &source_.step},
            {"--for", "engines whose rules to check, served with --tp ranks: vllm, sglang, trtllm", &engines_},
            {"--out", "file for the findings (default: verify.json of the run whose export this is)", &out_}};
  }
  bool parallel_options_are_a_plan() const override { return true; }
  ExitCode run(Context& context) override;

 private:
  bool has_student() const { return !source_.run.empty() || !source_.checkpoint.empty(); }
  OrderedJson findings(const std::filesystem::path& run_folder, const VerifyReport* student, const std::vector<std::string>& faults,
                       const std::vector<LoaderReport>& loaders) const;

  TrainedScalesChoice source_;
  std::string quantized_, out_;
  std::vector<std::string> engines_;
};

/// "--for vllm,sglang" or "--for vllm --for sglang".
std::vector<Engine> parse_engines(const std::vector<std::string>& words) {
  std::vector<Engine> engines;
  for (const std::string& word : words)
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t end = std::min(word.find(',', begin), word.size());
      if (end > begin) engines.push_back(find_engine(word.substr(begin, end - begin)));
      begin = end + 1;
    }
  return engines;
}

void print_findings(const OrderedJson& document) {
  std::string text = fmt::format("{}: {}\n", document["quantized"].get<std::string>(), document["ok"].get<bool>() ? "ok" : "NOT OK");
  if (!document["faults"].empty()) text += fmt::format("  {} faults\n", document["faults"].size());
  else text += document["student"].is_null() ? std::string("  complete and well-formed (names, shapes, finite scales); the values were not compared with a trained student (--run)\n")
                                        : fmt::format("  {} modules, {} weights compared with the trained student: {}\n", document["student"]["modules"].get<int64_t>(),
                                                      document["student"]["values"].get<int64_t>(),
                                                      document["student"]["verified"].get<bool>() ? "equal bit for bit" : "DIFFERENT");
  for (const auto& loader : document["loaders"]) {
    text += fmt::format("  {} (tp {}): {}; largest legal tp {}; needs {}\n", loader["engine"].get<std::string>(), loader["tp"].get<int64_t>(),
                        loader["ok"].get<bool>() ? "ok" : "NOT OK", loader["largest_tp"].get<int64_t>(), loader["needs"].get<std::string>());
    for (const auto& line : loader["errors"]) text += fmt::format("    error: {}\n", line.get<std::string>());
    for (const auto& line : loader["warnings"]) text += fmt::format("    warning: {}\n", line.get<std::string>());
  }
  print_text(text);
}

/// The first few; --json and verify.json have all.
void log_faults(Log& log, const std::vector<std::string>& faults) {
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < std::min(kShown, faults.size()); ++i) log.error("{}", faults[i]);
  if (faults.size() > kShown) log.error("and {} more (--json lists them)", faults.size() - kShown);
}

OrderedJson VerifyCommand::findings(const std::filesystem::path& run_folder, const VerifyReport* student, const std::vector<std::string>& faults,
                                    const std::vector<LoaderReport>& loaders) const {
  bool ok = faults.empty() && (!student || student->ok());
  OrderedJson engines = OrderedJson::array();
  for (const LoaderReport& report : loaders) {
    ok = ok && report.ok();
    engines.push_back(to_json(report));
  }
  return {{"quantized", quantized_},
          {"run", has_student() ? OrderedJson(run_folder.string()) : OrderedJson(nullptr)},
          {"ok", ok},
          {"faults", faults},
          {"student", student ? to_json(*student) : OrderedJson(nullptr)},
          {"loaders", engines}};
}

ExitCode VerifyCommand::run(Context& context) {
  const std::vector<Engine> engines = parse_engines(engines_);
  std::optional<TrainedScales> trained;
  if (has_student()) trained = open_trained_scales(source_);
  else if (!source_.model.empty() || source_.step) throw UserError("--model and --step belong to --run or --checkpoint, which is missing");
  const ModelConfig config = trained ? trained->model : read_model_config(quantized_, QuantizedConfig::kAllowed);
  if (context.common.dry_run) {
    return would(context, fmt::format("verify {}{}", quantized_, trained ? fmt::format(" against step {} of {}", trained->step, trained->run.string()) : std::string()));
  }
  if (trained && !trained->warning.empty()) context.log.warning("{}", trained->warning);
  const QuantizedFolder folder(quantized_, config);
  const std::vector<std::string> faults = folder.faults();
  std::optional<VerifyReport> student;
  if (trained) student = verify_export(trained->model, *trained->weights, trained->plan, trained->state, quantized_);
  std::vector<LoaderReport> loaders;
  for (const Engine engine : faults.empty() ? engines : std::vector<Engine>{}) loaders.push_back(check_loader(config, folder, engine, context.common.tp.value_or(1)));
  if (!faults.empty() && !engines.empty()) context.log.warning("engines' rules are not checked: the folder is not whole");
  log_faults(context.log, faults);
  if (student) log_faults(context.log, student->faults);

  const OrderedJson document = findings(trained ? trained->run : std::filesystem::path(), student ? &*student : nullptr, faults, loaders);
  // A look at some other folder must not overwrite what the run knows of its own.
  const bool own_export = trained && (!fs::exists(trained->run / "export") || fs::equivalent(trained->run / "export", quantized_));
  const std::filesystem::path file = !out_.empty() ? std::filesystem::path(out_) : own_export ? trained->run / "verify.json" : std::filesystem::path();
  if (!file.empty()) write_file_atomic(file, document.dump(2) + "\n");
  if (context.common.json) print_json(document);
  else print_findings(document);
  return document["ok"].get<bool>() ? ExitCode::kOk : ExitCode::kVerdictFailed;
}

}  // namespace

std::unique_ptr<Command> make_verify_command() { return std::make_unique<VerifyCommand>(); }

}  // namespace scalewright
