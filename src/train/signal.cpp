#include "train/signal.h"

#include <unistd.h>

namespace scalewright {

namespace {

volatile std::sig_atomic_t stop_asked = 0;   // a handler can reach nothing else

void on_signal(int number) {
  if (stop_asked != 0) _exit(128 + number);
  stop_asked = number;
}

}  // namespace

StopSignal::StopSignal() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
  if (before_[0].sa_handler != on_signal) stop_asked = 0;   // inside another guard its flag stays
}

StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int StopSignal::asked() const { return stop_asked; }

}  // namespace scalewright
