#include "base/log.h"

#include <chrono>
#include <ctime>
#include <mutex>

#include "base/error.h"

namespace scalewright {

namespace {

const char* prefix_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug: ";
    case LogLevel::kWarning: return "warning: ";
    case LogLevel::kError: return "error: ";
    case LogLevel::kInfo: break;
  }
  return "";
}

std::string time_of_day() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace

struct Log::State {
  int rank;
  LogLevel least;
  std::mutex mutex;
  std::vector<std::FILE*> files;

  bool shown(LogLevel level) const { return level >= least && (rank == 0 || level >= LogLevel::kWarning); }
};

Log::Log(int rank, LogLevel least) : state_(std::make_unique<State>()) {
  state_->rank = rank;
  state_->least = least;
}

Log::~Log() {
  for (std::FILE* file : state_->files) std::fclose(file);
}

void Log::add_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (!file) throw DiskError(fmt::format("cannot open the log file {}: {}", path, std::strerror(errno)));
  std::lock_guard lock(state_->mutex);
  state_->files.push_back(file);
}

void Log::write(LogLevel level, const std::string& line) {
  const std::string rank = state_->rank == 0 ? "" : fmt::format("[rank {}] ", state_->rank);
  const std::string text = fmt::format("{}{}{}\n", rank, prefix_of(level), line);
  std::lock_guard lock(state_->mutex);
  if (state_->shown(level)) std::fwrite(text.data(), 1, text.size(), stderr);
  for (std::FILE* file : state_->files) {
    // A full disk must not stop the program from telling so: failures to log are ignored.
    fmt::print(file, "{} {}", time_of_day(), text);
    std::fflush(file);
  }
}

}  // namespace scalewright
