#include "comm/watchdog.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include <fmt/ranges.h>

#include "base/error.h"

namespace scalewright {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBeat{500};
constexpr int kPollMilliseconds = 100;
// A rank that failed said why itself. The others may be about to fail for the same reason, and then should say so, too.
constexpr std::chrono::milliseconds kOwnMessageFirst{1500};
constexpr std::size_t kLongestLine = 4096;
constexpr std::chrono::seconds kReminder{10};

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

/// One end of a connection: lines in and out.
struct Peer {
  int descriptor = -1;
  int rank = -1;           // unknown until it says so
  std::string host, pid, operation = "starting", unread;
  Clock::time_point heard = Clock::now();
  bool finished = false;   // said goodbye, or that it failed
  std::optional<Clock::time_point> failed;

  std::string describe() const { return fmt::format("rank {} (host {}, pid {})", rank, host, pid); }

  void send(const std::string& line) const {
    const std::string text = line + "\n";
    ::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);   // a full or broken connection shows when reading
  }

  /// Reads what is there; false at the end of the connection.
  bool receive(const std::function<void(const std::string&)>& line) {
    char buffer[1024];
    const ssize_t n = ::recv(descriptor, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    heard = Clock::now();
    unread.append(buffer, static_cast<std::size_t>(n));
    for (std::size_t end; (end = unread.find('\n')) != std::string::npos; unread.erase(0, end + 1)) line(unread.substr(0, end));
    return unread.size() < kLongestLine;
  }
};

/// The word before the first blank, and the rest.
std::pair<std::string, std::string> split_word(const std::string& line) {
  const std::size_t blank = line.find(' ');
  return blank == std::string::npos ? std::pair(line, std::string()) : std::pair(line.substr(0, blank), line.substr(blank + 1));
}

int connect_to(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return -1;
  int descriptor = -1;
  for (const addrinfo* a = found; a && descriptor < 0; a = a->ai_next) {
    descriptor = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (descriptor >= 0 && ::connect(descriptor, a->ai_addr, a->ai_addrlen) != 0) {
      ::close(descriptor);
      descriptor = -1;
    }
  }
  ::freeaddrinfo(found);
  return descriptor;
}

}  // namespace

struct Watchdog::State {
  World world;
  Listener listener;
  std::chrono::seconds silence;
  std::vector<Peer> peers;   // on rank 0 all others, elsewhere rank 0
  std::atomic<const char*> operation{"starting"}, group{""};
  std::atomic<bool> ending{false}, failed{false};
  Clock::time_point started = Clock::now(), reminded = started;   // of the meeting, on rank 0
  bool met = false;
  std::thread thread;

  std::string own_operation() const { return fmt::format("{} {}", operation.load(), group.load()); }

  [[noreturn]] void end_because_of(const std::string& cause) {
    const std::string text = fmt::format("[rank {}] error: {}\nhint: its own messages and its host's log say why; run the command again to continue from the last checkpoint\n",
                                         world.rank, cause);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    std::_Exit(static_cast<int>(ExitCode::kCommunication));
  }

  /// Rank 0 tells all others, then ends.
  [[noreturn]] void condemn(const Peer& culprit, const std::string& what) {
    const std::string cause = fmt::format("{} {}; its last operation: {}", culprit.describe(), what, culprit.operation);
    for (const Peer& peer : peers)
      if (&peer != &culprit && !peer.finished) peer.send("cause " + cause);
    end_because_of(cause);
  }

  void hear(Peer& peer, const std::string& line) {
    const auto [word, rest] = split_word(line);
    if (word == "hello") {
      const auto [rank, more] = split_word(rest);
      peer.rank = std::atoi(rank.c_str());
      std::tie(peer.pid, peer.host) = split_word(more);
    } else if (word == "beat") {
      peer.operation = rest;
    } else if (word == "bye") {
      peer.finished = true;
    } else if (word == "failed") {
      peer.operation = rest;
      peer.finished = true;
      peer.failed = Clock::now();
    } else if (word == "cause" && world.rank > 0) {
      end_because_of(rest);
    }
  }

  void watch(Peer& peer) {
    if (peer.failed && Clock::now() - *peer.failed > kOwnMessageFirst && !ending) {
      if (world.rank == 0) condemn(peer, "failed");
      end_because_of(fmt::format("{} failed; its last operation: {}", peer.describe(), peer.operation));
    }
    if (peer.finished) return;
    if (!peer.receive([&](const std::string& line) { hear(peer, line); }) && !peer.finished) {
      if (ending) peer.finished = true;
      else if (world.rank == 0) condemn(peer, "died");
      else end_because_of(fmt::format("{} died; its last operation: {}", peer.describe(), peer.operation));
    }
    if (Clock::now() - peer.heard > silence && !peer.finished) {
      const std::string what = fmt::format("gives no sign of life for {} s (stopped, or its host is gone)", silence.count());
      if (world.rank == 0) condemn(peer, what);
      end_because_of(fmt::format("{} {}; its last operation: {}", peer.describe(), what, peer.operation));
    }
  }

  void accept_peer() {
    const int descriptor = ::accept4(listener.descriptor, nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor < 0) return;
    Peer peer;
    peer.descriptor = descriptor;
    peer.host = "unknown";
    greet(peer);
    peers.push_back(std::move(peer));
  }

  void greet(const Peer& peer) const { peer.send(fmt::format("hello {} {} {}", world.rank, ::getpid(), host_name())); }

  /// Rank 0, until all others have said hello.
  void await_all() {
    if (met || world.rank > 0) return;
    std::set<int> missing;
    for (int r = 1; r < world.size; ++r) missing.insert(r);
    for (const Peer& peer : peers) missing.erase(peer.rank);
    met = missing.empty();
    const auto now = Clock::now();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - started).count();
    if (met || ending) return;
    const std::string who = fmt::format("{} of {} ranks: {}", missing.size(), world.size, fmt::join(missing, ", "));
    if (seconds >= world.meeting_seconds) {
      const std::string cause = fmt::format("{} did not come within {} s (SCALEWRIGHT_MEETING_SECONDS)", who, world.meeting_seconds);
      for (const Peer& peer : peers) peer.send("cause " + cause);
      end_because_of(cause);
    }
    if (now - reminded < kReminder) return;
    reminded = now;
    const std::string text = fmt::format("[rank 0] waiting for {} ({} s)\n", who, seconds);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  }

  void run() {
    Clock::time_point beaten{};
    while (true) {
      std::vector<pollfd> waiting;
      if (listener.descriptor >= 0) waiting.push_back({listener.descriptor, POLLIN, 0});
      for (const Peer& peer : peers)
        if (!peer.finished) waiting.push_back({peer.descriptor, POLLIN, 0});
      ::poll(waiting.data(), waiting.size(), kPollMilliseconds);
      if (listener.descriptor >= 0 && (waiting[0].revents & POLLIN)) accept_peer();
      const auto now = Clock::now();
      if (now - beaten > 4 * kBeat && beaten != Clock::time_point{})   // this process itself was stopped: what it heard meanwhile is unread
        for (Peer& peer : peers) peer.heard = now;
      for (Peer& peer : peers) watch(peer);
      await_all();
      if (ending) {
        for (const Peer& peer : peers)
          if (!peer.finished) peer.send(failed ? "failed " + own_operation() : "bye");
        return;
      }
      if (now - beaten < kBeat) continue;
      beaten = now;
      for (const Peer& peer : peers)
        if (!peer.finished) peer.send("beat " + own_operation());
    }
  }
};

Watchdog::Listener Watchdog::open_listener() {
  Listener listener;
  listener.descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  if (listener.descriptor < 0 || ::bind(listener.descriptor, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener.descriptor, SOMAXCONN) != 0 ||
      ::getsockname(listener.descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw CommError(fmt::format("no TCP port to listen on: {}", std::strerror(errno)));
  listener.port = ntohs(address.sin_port);
  return listener;
}

Watchdog::Watchdog(const World& world, Listener listener, std::chrono::seconds silence) : state_(std::make_unique<State>()) {
  state_->world = world;
  state_->silence = silence;
  if (world.rank == 0) {
    state_->listener = listener;
  } else {
    Peer first;
    first.rank = 0;
    first.host = world.address;
    first.pid = "unknown";
    first.descriptor = connect_to(world.address, listener.port);
    if (first.descriptor < 0) throw CommError(fmt::format("rank {} cannot reach the watchdog of rank 0 at {}:{}: {}", world.rank, world.address, listener.port, std::strerror(errno)));
    const int on = 1;
    ::setsockopt(first.descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    state_->greet(first);
    state_->peers.push_back(std::move(first));
  }
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Watchdog::~Watchdog() {
  state_->failed = std::uncaught_exceptions() > 0;
  dismiss();
  for (const Peer& peer : state_->peers) ::close(peer.descriptor);
  if (state_->listener.descriptor >= 0) ::close(state_->listener.descriptor);
}

void Watchdog::dismiss() {
  state_->ending = true;
  if (state_->thread.joinable()) state_->thread.join();
}

void Watchdog::doing(const char* operation, const char* group) {
  state_->operation = operation;
  state_->group = group;
}

void Watchdog::await_cause(std::chrono::milliseconds limit) const { std::this_thread::sleep_for(limit); }

}  // namespace scalewright
