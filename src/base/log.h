// The log: plain lines on standard error (rank 0 only unless asked), optionally a file as well.
#pragma once
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>

namespace scalewright {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Passed by reference to whatever has something to tell. Thread-safe. Lines of ranks other than 0 carry their rank and are
/// shown only from kWarning on. Never writes to standard output.
class Log {
 public:
  explicit Log(int rank = 0, LogLevel least = LogLevel::kInfo);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// Also appends every line to this file. Throws DiskError if it cannot be opened.
  void add_file(const std::string& path);
  void write(LogLevel level, const std::string& line);

  template <typename... A>
  void debug(fmt::format_string<A...> f, A&&... a) { write(LogLevel::kDebug, fmt::format(f, std::forward<A>(a)...)); }
  template <typename... A>
  void info(fmt::format_string<A...> f, A&&... a) { write(LogLevel::kInfo, fmt::format(f, std::forward<A>(a)...)); }
  template <typename... A>
  void warning(fmt::format_string<A...> f, A&&... a) { write(LogLevel::kWarning, fmt::format(f, std::forward<A>(a)...)); }
  template <typename... A>
  void error(fmt::format_string<A...> f, A&&... a) { write(LogLevel::kError, fmt::format(f, std::forward<A>(a)...)); }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace scalewright
