// compare: paired differences and verdicts of two or more scores.json.
#include "app/command.h"
#include "eval/comparison.h"
#include "store/files.h"

namespace scalewright {

namespace {

class CompareCommand : public Command {
 public:
  std::string name() const override { return "compare"; }
  std::string summary() const override { return "paired statistics and verdicts of two or more scores.json"; }

  std::vector<Option> options() override {
    return {
        {"files", "scores.json files: the baseline, then the candidates (BF16, PTQ, QAD: also shows how much of PTQ's loss QAD recovers)", &files_, true},
        {"--max-drop", "fail (exit 1) when a task or the average of a candidate is more than this share below the baseline (0.01: one point)", &max_drop_},
        {"--out", "write the verdicts to this file (verdict.json)", &out_},
    };
  }

  ExitCode run(Context& context) override {
    if (files_.size() < 2) throw UserError("compare: at least two scores.json files are needed\nhint: scalewright compare bf16.json ptq.json");
    if (max_drop_ && !(*max_drop_ >= 0)) throw UserError(fmt::format("--max-drop is {}, a share of at least 0 is expected\nhint: 0.01 allows one point", *max_drop_));
    std::vector<Scores> scores;
    for (const std::string& file : files_) scores.push_back(read_scores(file));
    const std::vector<Comparison> comparisons = compare_all(files_, scores);
    const std::vector<std::string> failed = max_drop_ ? failed_gates(comparisons, *max_drop_) : std::vector<std::string>();
    report(context, comparisons, failed);
    return failed.empty() ? ExitCode::kOk : ExitCode::kVerdictFailed;
  }

 private:
  void report(Context& context, const std::vector<Comparison>& comparisons, const std::vector<std::string>& failed) const {
    OrderedJson json = to_json(comparisons);
    json["max_drop"] = max_drop_ ? OrderedJson(*max_drop_) : OrderedJson(nullptr);
    json["passed"] = failed.empty();
    json["failed"] = failed;
    if (!out_.empty() && !context.common.dry_run) write_file_atomic(out_, json.dump(2) + "\n");
    if (context.common.json) {
      print_json(json);
    } else {
      std::fputs(format_table(comparisons).c_str(), stdout);
    }
    for (const std::string& reason : failed) context.log.error("{}", reason);
  }

  std::vector<std::string> files_;
  std::optional<double> max_drop_;
  std::string out_;
};

}  // namespace

std::unique_ptr<Command> make_compare_command() { return std::make_unique<CompareCommand>(); }

}  // namespace scalewright
