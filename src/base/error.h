// The kinds of failure, each with the exit code that the command line returns for it.
#pragma once
#include <stdexcept>
#include <string>

namespace scalewright {

enum class ExitCode : int {
  kOk = 0,
  kVerdictFailed = 1,   // a comparison or verdict failed
  kUsage = 2,           // command line or configuration
  kData = 3,            // data or checkpoint
  kCommunication = 4,   // a peer or a collective
  kNonFinite = 5,       // training met NaN or infinity and could not go on
  kDisk = 6,            // space or I/O
  kBug = 70,            // our fault
  kStopped = 75,        // stopped by a signal, resumable
};

/// Base of all our exceptions. `what()` is a whole message: what happened, where (file and line where there is one), what was
/// expected, and what to do ("hint: ...").
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// The user's command line or configuration is wrong.
struct UserError : Error {
  explicit UserError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};
/// A data file, model or checkpoint is missing, malformed or inconsistent.
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitCode::kData, message) {}
};
/// A peer died, or a collective failed or timed out.
struct CommError : Error {
  explicit CommError(const std::string& message) : Error(ExitCode::kCommunication, message) {}
};
/// Values that must be finite are not.
struct NonFiniteError : Error {
  explicit NonFiniteError(const std::string& message) : Error(ExitCode::kNonFinite, message) {}
};
/// The disk is full or an I/O operation failed.
struct DiskError : Error {
  explicit DiskError(const std::string& message) : Error(ExitCode::kDisk, message) {}
};
/// An invariant of ours does not hold.
struct BugError : Error {
  explicit BugError(const std::string& message) : Error(ExitCode::kBug, "internal error: " + message) {}
};
/// A signal asked for a stop; state has been saved and the command can be run again.
struct StoppedError : Error {
  explicit StoppedError(const std::string& message) : Error(ExitCode::kStopped, message) {}
};

}  // namespace scalewright

/// Checks an invariant of ours; `message` is a fmt format with arguments.
#define SW_CHECK(condition, ...)                                                                                       \
  do {                                                                                                                 \
    if (!(condition)) throw ::scalewright::BugError(std::string(#condition " is false: ") + fmt::format(__VA_ARGS__)); \
  } while (false)
