// A child process that is asked in lines and answers in lines.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace scalewright {

/// Standard input and output of the child are one socket (so that a dead child is an error, not a SIGPIPE); its standard error is
/// kept for messages. All waiting is bounded.
class WorkerProcess {
 public:
  /// Starts `arguments` (the first is looked up in PATH) with `environment` ("NAME=value") in place of ours. Throws DataError.
  WorkerProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, double timeout_s);
  /// Closes the socket, gives the child a moment to end, then kills it.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  /// Sends `line` (which has no newline; nothing is sent when it is empty) and returns the next line of the answer, without its
  /// newline. Reads while it writes, so neither side waits for the other. Throws DataError when the child ends or nothing
  /// moves for timeout_s seconds, with the last lines of its standard error.
  std::string exchange(std::string_view line);

 private:
  bool send_some(std::string_view& rest);
  bool receive_some();
  bool drain_errors();
  void wait_for_io(bool writing);
  [[noreturn]] void fail(const std::string& what);
  std::string end_of_child();
  void stop();

  double timeout_s_;
  int pid_ = -1, socket_ = -1, errors_ = -1;
  std::string received_, error_text_;
};

}  // namespace scalewright
