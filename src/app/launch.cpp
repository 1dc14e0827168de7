// launch: starts the ranks of one command on this machine and ends them together.
#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "app/command.h"
#include "base/error.h"
#include "comm/watchdog.h"

namespace scalewright {
namespace {

// After a rank failed the others notice it themselves; then they are asked to end, then made to.
constexpr std::chrono::seconds kNotice{15}, kGrace{10};

volatile std::sig_atomic_t passed_on = 0;
void remember(int signal) { passed_on = signal; }

/// A TCP port that is free now.
int free_port() {
  const Watchdog::Listener listener = Watchdog::open_listener();
  ::close(listener.descriptor);
  return listener.port;
}

class LaunchCommand : public Command {
 public:
  std::string name() const override { return "launch"; }
  std::string summary() const override { return "starts N ranks of a command on this machine: launch --nproc N -- COMMAND ..."; }
  std::vector<Option> options() override { return {{"--nproc", "ranks", &ranks_, true}, {"command", "the command and its options, after --", &words_, true}}; }
  RankUse ranks() const override { return RankUse::kOne; }
  bool parallel_options_are_a_plan() const override { return true; }
  ExitCode run(Context& context) override;

 private:
  [[noreturn]] void become_rank(int64_t rank, int port, int64_t threads) const;

  int64_t ranks_ = 0;
  std::vector<std::string> words_;
};

/// In the child: the environment that torchrun would set, and only the first rank's standard output.
void LaunchCommand::become_rank(int64_t rank, int port, int64_t threads) const {
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);   // should launch itself be killed, its ranks save and stop instead of going on unseen
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(ranks_));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  ::setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 0);
  if (rank > 0 && !std::freopen("/dev/null", "w", stdout)) std::_Exit(static_cast<int>(ExitCode::kBug));
  std::vector<char*> arguments{const_cast<char*>("scalewright")};
  for (const std::string& word : words_) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
  std::_Exit(static_cast<int>(ExitCode::kBug));
}

ExitCode LaunchCommand::run(Context& context) {
  if (ranks_ < 1 || ranks_ > 1024) throw UserError(fmt::format("--nproc {}: from 1 to 1024", ranks_));
  if (words_.empty() || words_[0] == "launch") throw UserError("launch --nproc N -- COMMAND ...: COMMAND is one of the other commands");
  if (context.common.dry_run) return would(context, fmt::format("start {} ranks of: scalewright {}", ranks_, fmt::join(words_, " ")));
  if (context.common.json && std::find(words_.begin(), words_.end(), "--json") == words_.end()) words_.push_back("--json");
  const int port = free_port();
  const int64_t threads = std::max<int64_t>(1, std::thread::hardware_concurrency() / ranks_);
  std::fflush(nullptr);
  std::map<pid_t, int64_t> running;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) throw CommError(fmt::format("rank {} cannot be started: {}", rank, std::strerror(errno)));
    if (child == 0) become_rank(rank, port, threads);
    running.emplace(child, rank);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, remember);
  bool told = false;   // a signal of ours; a rank that another one ended is named even when its end is noticed after theirs
  const auto tell_all = [&](int signal) {
    told = true;
    for (const auto& [child, rank] : running) ::kill(child, signal);
  };
  int result = 0;
  bool ending = false;
  std::chrono::steady_clock::time_point failed_at;
  while (!running.empty()) {
    if (const int signal = passed_on; signal != 0) {
      passed_on = 0;
      tell_all(signal);
    }
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, WNOHANG);
    if (child <= 0) {
      const auto waited = std::chrono::steady_clock::now() - failed_at;
      if (ending && waited > kNotice + kGrace) tell_all(SIGKILL);
      else if (ending && waited > kNotice) tell_all(SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    const int64_t rank = running.at(child);
    running.erase(child);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kCommunication);
    if (WIFSIGNALED(status) && !told) context.log.error("rank {} (pid {}) was ended by signal {} ({})", rank, child, WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (code == 0 || code == static_cast<int>(ExitCode::kStopped)) {
      if (result == 0) result = code;
      continue;
    }
    // The first failure is the cause: what the others say afterwards follows from it.
    if (!ending) {
      result = code;
      if (!WIFSIGNALED(status)) context.log.error("rank {} ended with exit code {}; the others end too", rank, code);
      failed_at = std::chrono::steady_clock::now();
    }
    ending = true;
  }
  return static_cast<ExitCode>(result);
}

}  // namespace

std::unique_ptr<Command> make_launch_command() { return std::make_unique<LaunchCommand>(); }

}  // namespace scalewright
