#include "eval/progress.h"

namespace scalewright {

namespace {

constexpr std::chrono::seconds kBetweenLines{5};

}  // namespace

EvaluationProgress::EvaluationProgress(Log& log, std::string what, int64_t total)
    : log_(log), what_(std::move(what)), total_(total), start_(Clock::now()), last_line_(start_) {}

void EvaluationProgress::add(int64_t units) {
  done_ += units;
  const Clock::time_point now = Clock::now();
  if (now - last_line_ < kBetweenLines) return;
  last_line_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done_) / seconds;
  log_.info("{}: {} {}/{} answers, {:.1f} answers/s, {:.0f} s left", what_, stage_, done_, total_, rate, static_cast<double>(total_ - done_) / rate);
}

}  // namespace scalewright
