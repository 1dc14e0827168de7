#include "train/step_log.h"

#include <unistd.h>

#include <fstream>

namespace scalewright {

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  return file >> total >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

std::string format_duration(double seconds) {
  const auto s = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  return s < 3600 ? fmt::format("{:02}:{:02}", s / 60, s % 60) : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

StepLog::StepLog(const ModelConfig& model, double flops_factor, int64_t total_steps, const LossSums& interval)
    : model_(model), flops_factor_(flops_factor), total_steps_(total_steps), interval_(interval) {}

void StepLog::add(const StepResult& step, double seconds, bool applied) {
  if (applied) interval_ += step.sums;
  tokens_ += step.tokens;
  squared_lengths_ += step.squared_lengths;
  seconds_ += seconds;
  all_seconds_ += seconds;
  ++all_steps_;
}

std::map<std::string, double> StepLog::values(int64_t step) const {
  const double n = interval_.tokens > 0 ? static_cast<double>(interval_.tokens) : std::nan(""), tokens = static_cast<double>(tokens_);
  const double context = tokens_ > 0 ? squared_lengths_ / tokens : 0, rate = seconds_ > 0 ? tokens / seconds_ : 0;
  return {{"loss", interval_.loss / n},
          {"lm", interval_.lm / n},
          {"fkl", interval_.fkl / n},
          {"rkl", interval_.rkl / n},
          {"cakld", interval_.cakld / n},
          {"top1", static_cast<double>(interval_.top1_agree) / n},
          {"tokens_per_second", rate},
          {"tflops", rate * forward_flops_per_token(model_, context) * flops_factor_ / 1e12},
          {"elapsed", all_seconds_},
          {"eta", all_seconds_ / static_cast<double>(std::max<int64_t>(1, all_steps_)) * static_cast<double>(total_steps_ - step)},
          {"memory", static_cast<double>(resident_bytes())}};
}

std::string StepLog::line(int64_t step, const std::map<std::string, double>& v, int64_t skipped) const {
  const auto at = [&](const char* name) { return v.at(name); };
  std::string line = fmt::format(
      "iter {}/{} | loss {:.5f} | lm {:.4f} | fkl {:.5f} | rkl {:.5f} | cakld {:.5f} | gnorm {:.3e} | lr {:.3e} | {:.0f} tok/s | {:.4f} TFLOP/s | "
      "elapsed {} | eta {} | mem {:.2f} GB",
      step, total_steps_, at("loss"), at("lm"), at("fkl"), at("rkl"), at("cakld"), at("gnorm"), at("lr"), at("tokens_per_second"), at("tflops"),
      format_duration(at("elapsed")), format_duration(at("eta")), at("memory") / 1e9);
  if (skipped > 0) line += fmt::format(" | skipped {}", skipped);
  return line;
}

void StepLog::restart_interval() {
  interval_ = LossSums();
  tokens_ = 0;
  squared_lengths_ = seconds_ = 0;
}

}  // namespace scalewright
