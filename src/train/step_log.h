// The log line of an interval, and its rates.
#pragma once
#include <map>
#include <string>

#include "train/training_step.h"

namespace scalewright {

/// Resident memory of this process in bytes (/proc/self/statm); 0 where there is none.
int64_t resident_bytes();

/// "1:02:03", "02:03".
std::string format_duration(double seconds);

/// Collects steps between two log lines.
class StepLog {
 public:
  /// `flops_factor`: training FLOPs by forward FLOPs: 3 (forward, backward to inputs and to weights) + 1 with recompute + 1 for the
  /// teacher. `interval`: sums that an interrupted run had collected since its last line.
  StepLog(const ModelConfig& model, double flops_factor, int64_t total_steps, const LossSums& interval);

  void add(const StepResult& step, double seconds, bool applied);
  const LossSums& interval() const { return interval_; }

  /// Numbers of the interval: means over the valid tokens of its applied steps (loss, lm, fkl, rkl, cakld, top1; NaN without one), tokens_per_second, tflops, elapsed and eta in
  /// seconds, memory in bytes.
  std::map<std::string, double> values(int64_t step) const;
  /// iter a/b | loss | lm | fkl | rkl | cakld | gnorm | lr | tok/s | TFLOP/s | elapsed | eta | mem [| skipped n]
  std::string line(int64_t step, const std::map<std::string, double>& values, int64_t skipped) const;
  void restart_interval();

 private:
  ModelConfig model_;
  double flops_factor_;
  int64_t total_steps_;
  LossSums interval_;
  int64_t tokens_ = 0;
  double squared_lengths_ = 0, seconds_ = 0, all_seconds_ = 0;
  int64_t all_steps_ = 0;
};

}  // namespace scalewright
