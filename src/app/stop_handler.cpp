#include "app/stop_handler.h"

#include <unistd.h>

#include <cstring>

#include "base/error.h"

namespace scalewright {

namespace {

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGUSR1};
volatile std::sig_atomic_t print_document = 0;   // a handler can reach nothing else

void say(int descriptor, const char* text) { [[maybe_unused]] const ssize_t n = ::write(descriptor, text, std::strlen(text)); }

void on_stop(int) {
  say(STDERR_FILENO, "error: stopped by a signal between two stages\nhint: run the same command again to continue\n");
  if (print_document) say(STDOUT_FILENO, "{\n  \"error\": \"stopped by a signal; run the same command again to continue\",\n  \"exit_code\": 75\n}\n");
  ::_exit(static_cast<int>(ExitCode::kStopped));
}

}  // namespace

StopHandler::StopHandler(bool json) {
  print_document = json;
  struct sigaction action = {};
  action.sa_handler = on_stop;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < before_.size(); ++i) sigaction(kStopSignals[i], &action, &before_[i]);
}

StopHandler::~StopHandler() {
  for (std::size_t i = 0; i < before_.size(); ++i) sigaction(kStopSignals[i], &before_[i], nullptr);
}

}  // namespace scalewright
