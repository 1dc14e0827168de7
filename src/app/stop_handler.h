// SIGINT, SIGTERM and SIGUSR1 between the parts of a job that save their own state: the job's files are whole at any moment, so it just ends.
#pragma once
#include <csignal>

#include <array>

namespace scalewright {

/// While one lives, SIGINT, SIGTERM and SIGUSR1 end the program with exit code 75 (stopped but resumable), a line on standard error and, with
/// `json`, a document on standard output. Training's own StopSignal takes over while it trains.
class StopHandler {
 public:
  explicit StopHandler(bool json);
  ~StopHandler();
  StopHandler(const StopHandler&) = delete;

 private:
  std::array<struct sigaction, 3> before_;
};

}  // namespace scalewright
