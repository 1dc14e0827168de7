// Progress of an evaluation as log lines: how far, how fast, how long still.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "base/log.h"

namespace scalewright {

/// Counts work in units (questions); writes a line at most every few seconds.
class EvaluationProgress {
 public:
  EvaluationProgress(Log& log, std::string what, int64_t total);
  /// What is being done now (a task's name).
  void stage(const std::string& name) { stage_ = name; }
  void add(int64_t units);

 private:
  using Clock = std::chrono::steady_clock;
  Log& log_;
  std::string what_, stage_;
  int64_t total_, done_ = 0;
  Clock::time_point start_, last_line_;
};

}  // namespace scalewright
