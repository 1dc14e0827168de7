#include "text/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"

namespace scalewright {
namespace {

constexpr std::size_t kKeptErrorBytes = 4096;              // of the child's standard error, the last part
constexpr std::size_t kMaxAnswerBytes = std::size_t{1} << 30;

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

void set_nonblocking(int descriptor) { fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK); }

/// The child gets `socket` as standard input and output, `errors` as standard error, and a process group of its own: an interrupt from
/// the terminal is for us, and the child ends when the socket closes.
int spawn(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, int socket, int errors, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, socket, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, 1);
  posix_spawn_file_actions_adddup2(&actions, errors, 2);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  const int result = posix_spawnp(pid, arguments[0].c_str(), &actions, &attributes, pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return result;
}

}  // namespace

WorkerProcess::WorkerProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, double timeout_s)
    : timeout_s_(timeout_s) {
  int sockets[2], pipes[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    throw DataError(fmt::format("cannot start {}: {}", arguments[0], std::strerror(errno)));
  if (pipe2(pipes, O_CLOEXEC) != 0) {
    const int why = errno;
    close(sockets[0]);
    close(sockets[1]);
    throw DataError(fmt::format("cannot start {}: {}", arguments[0], std::strerror(why)));
  }
  const int why = spawn(arguments, environment, sockets[1], pipes[1], &pid_);
  close(sockets[1]);
  close(pipes[1]);
  socket_ = sockets[0];
  errors_ = pipes[0];
  set_nonblocking(socket_);
  set_nonblocking(errors_);
  if (why != 0) {
    pid_ = -1;
    stop();
    throw DataError(fmt::format("cannot start {}: {}", arguments[0], std::strerror(why)));
  }
}

WorkerProcess::~WorkerProcess() { stop(); }

std::string WorkerProcess::exchange(std::string_view line) {
  using Clock = std::chrono::steady_clock;
  const std::string framed = line.empty() ? std::string() : std::string(line) + "\n";
  std::string_view rest = framed;
  std::size_t searched = 0;
  auto last_progress = Clock::now();
  for (;;) {
    if (const std::size_t end = received_.find('\n', searched); end != std::string::npos) {
      std::string answer = received_.substr(0, end);
      received_.erase(0, end + 1);
      return answer;
    }
    searched = received_.size();
    bool moved = send_some(rest);
    moved |= receive_some();
    moved |= drain_errors();
    const auto now = Clock::now();
    if (moved) last_progress = now;
    else if (std::chrono::duration<double>(now - last_progress).count() > timeout_s_)
      fail(fmt::format("answered nothing for {:g} s", timeout_s_));
    else wait_for_io(!rest.empty());
  }
}

bool WorkerProcess::send_some(std::string_view& rest) {
  if (rest.empty()) return false;
  const ssize_t sent = send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL);
  if (sent > 0) {
    rest.remove_prefix(static_cast<std::size_t>(sent));
    return true;
  }
  if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) fail(end_of_child());
  return false;
}

bool WorkerProcess::receive_some() {
  char buffer[1 << 16];
  const ssize_t got = recv(socket_, buffer, sizeof buffer, 0);
  if (got > 0) {
    received_.append(buffer, static_cast<std::size_t>(got));
    if (received_.size() > kMaxAnswerBytes) fail("sent an answer that is too long");
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) fail(end_of_child());
  return false;
}

bool WorkerProcess::drain_errors() {
  char buffer[4096];
  bool moved = false;
  for (ssize_t got; (got = read(errors_, buffer, sizeof buffer)) > 0; moved = true) {
    error_text_.append(buffer, static_cast<std::size_t>(got));
    if (error_text_.size() > 2 * kKeptErrorBytes) error_text_.erase(0, error_text_.size() - kKeptErrorBytes);
  }
  return moved;
}

void WorkerProcess::wait_for_io(bool writing) {
  pollfd waits[2] = {{socket_, static_cast<short>(POLLIN | (writing ? POLLOUT : 0)), 0}, {errors_, POLLIN, 0}};
  // Its end of standard error may be closed for good (POLLHUP at once): then only the socket is waited for.
  const bool errors_closed = poll(&waits[1], 1, 0) > 0 && (waits[1].revents & POLLIN) == 0;
  poll(waits, errors_closed ? 1 : 2, 100);
}

/// The child hung up: how it ended.
std::string WorkerProcess::end_of_child() {
  int status = 0;
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      if (WIFSIGNALED(status)) return fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
      return fmt::format("ended with status {}", WEXITSTATUS(status));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "closed its output";
}

void WorkerProcess::fail(const std::string& what) {
  drain_errors();
  std::string tail = error_text_.size() > kKeptErrorBytes ? error_text_.substr(error_text_.size() - kKeptErrorBytes) : error_text_;
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  stop();
  throw DataError(fmt::format("the text worker {}{}{}", what, tail.empty() ? "" : "; its last words:\n", tail));
}

void WorkerProcess::stop() {
  if (socket_ >= 0) close(socket_);
  if (errors_ >= 0) close(errors_);
  socket_ = errors_ = -1;
  if (pid_ < 0) return;
  for (int attempt = 0; attempt < 50; ++attempt) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return;
    }
    // It is inside a request when it does not end at once on the closed socket; nobody waits for that answer.
    if (attempt == 25) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace scalewright
