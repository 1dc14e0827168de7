// Stopping politely: SIGINT, SIGTERM and SIGUSR1 ask, a second one ends the program at once.
#pragma once
#include <array>
#include <csignal>

namespace scalewright {

/// While one lives, the first of these signals only sets a flag; the second ends the process with 128 + its number. The previous
/// handlers come back on destruction. Guards nest: an inner one sees the outer one's flag.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  /// 0, or the number of the signal that asked.
  int asked() const;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGUSR1};
  std::array<struct sigaction, kSignals.size()> before_;
};

}  // namespace scalewright
