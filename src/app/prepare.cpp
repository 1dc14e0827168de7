// prepare: raw data to token shards, once.
#include "app/command.h"
#include "model/config.h"
#include "text/prepare.h"
#include "text/worker.h"

namespace scalewright {
namespace {

class PrepareCommand : public Command {
 public:
  std::string name() const override { return "prepare"; }
  std::string summary() const override { return "tokenizes, masks and packs data once, into token shards that training reads"; }

  std::vector<Option> options() override {
    return {
        {"--model", "Hugging Face folder whose tokenizer and chat template are used (default: model.path of the configuration)", &model_},
        {"--data", "JSON lines or text files (default: data.train of the configuration)", &data_},
        {"--out", "folder for manifest.json and the shards", &out_, true},
    };
  }

  ExitCode run(Context& context) override {
    const Config config = command_config(context.common);
    if (model_.empty()) model_ = config.model.path;
    if (data_.empty()) data_ = config.data.train;
    if (model_.empty()) throw UserError("prepare: no model\nhint: --model DIR, or model.path in the configuration");
    if (data_.empty()) throw UserError("prepare: no data\nhint: --data FILE..., or data.train in the configuration");
    const std::filesystem::path model = resolve_model_folder(model_);
    if (context.common.dry_run) return dry_run(context, model, config.data);
    const PrepareReport report = prepare_data(model, data_, config.data, out_, context.log);
    if (context.common.json) print_json(document(report));
    else print(report);
    return ExitCode::kOk;
  }

 private:
  /// Opens everything that would be read, and says what would be done.
  ExitCode dry_run(Context& context, const std::filesystem::path& model, const DataSection& options) const {
    const std::string key = preparation_key(model, data_, options);
    const TextWorker checks_that_it_starts(model);
    if (context.common.json) print_json({{"model", model.string()}, {"data", data_}, {"out", out_}, {"key", key}});
    else fmt::print("would tokenize {} file(s) with the tokenizer of {} into {} (rows of {} tokens)\n", data_.size(), model.string(), out_, options.seq_len);
    return ExitCode::kOk;
  }

  OrderedJson document(const PrepareReport& report) const {
    return {{"out", out_},
            {"lines", report.lines},
            {"rows", report.rows},
            {"documents", report.documents},
            {"tokens", report.tokens},
            {"target_tokens", report.target_tokens},
            {"bad", report.bad},
            {"truncated", report.truncated},
            {"without_target", report.without_target},
            {"bad_examples", report.bad_examples},
            {"content_hash", report.content_hash}};
  }

  void print(const PrepareReport& report) const {
    const auto row = [](const char* what, int64_t count) { fmt::print("{:<28} {:>14}\n", what, count); };
    fmt::print("{}\n", out_);
    row("lines", report.lines);
    row("  bad (see above)", report.bad);
    row("  without a target (dropped)", report.without_target);
    row("  truncated", report.truncated);
    row("rows", report.rows);
    row("documents", report.documents);
    row("tokens", report.tokens);
    row("target tokens", report.target_tokens);
    fmt::print("{:<28} {}\n", "content hash", report.content_hash);
  }

  std::string model_, out_;
  std::vector<std::string> data_;
};

}  // namespace

std::unique_ptr<Command> make_prepare_command() { return std::make_unique<PrepareCommand>(); }

}  // namespace scalewright
