#include "comm/gloo.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <numeric>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "comm/host_group.h"

namespace scalewright {

namespace {

using Gloo = c10d::ProcessGroupGloo;
using Rows = std::vector<int64_t>;

int64_t total(const Rows& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

/// What sums travel in: never below float32.
at::ScalarType wire_type(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype; }

/// parts [n, ...] -> their sum or maximum in the order of n.
at::Tensor reduce_in_order(const at::Tensor& parts, Reduce op) {
  at::Tensor result = parts[0].clone();
  for (int64_t i = 1; i < parts.size(0); ++i) {
    if (op == Reduce::kSum) result.add_(parts[i]);
    else result = at::maximum(result, parts[i]);
  }
  return result;
}

class GlooGroup final : public Group {
 public:
  GlooGroup(std::string name, std::vector<int> ranks, c10::intrusive_ptr<Gloo> gloo, std::shared_ptr<Watchdog> watchdog)
      : name_(std::move(name)), ranks_(std::move(ranks)), gloo_(std::move(gloo)), watchdog_(std::move(watchdog)) {}

  int rank() const override { return gloo_->getRank(); }
  int size() const override { return gloo_->getSize(); }

  void all_reduce(at::Tensor& x, Reduce op) const override {
    at::NoGradGuard no_grad;
    constexpr int64_t kSmall = 2048;   // elements: below, one message to everybody beats two rounds
    const at::Tensor flat = x.detach().to(wire_type(x.scalar_type())).contiguous().flatten();
    const int64_t n = flat.numel(), share = (n + size() - 1) / size();
    at::Tensor result;
    if (n <= kSmall) {
      result = reduce_in_order(gather_equal(flat).view({size(), n}), op);
    } else {
      const at::Tensor padded = at::constant_pad_nd(flat, {0, share * size() - n});
      const Rows equal(static_cast<std::size_t>(size()), share);
      result = gather_equal(reduce_in_order(exchange(padded, equal, equal).view({size(), share}), op)).narrow(0, 0, n);
    }
    x.detach().copy_(result.view(x.sizes()));
  }

  void broadcast(at::Tensor& x, int root) const override {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> bytes{as_bytes(x.detach().contiguous())};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    wait("broadcast", [&] { return gloo_->broadcast(bytes, options); });
    if (rank() != root) x.detach().copy_(bytes[0].view(x.scalar_type()).view(x.sizes()));
  }

  at::Tensor all_gather(const at::Tensor& x, const Rows& rows) const override {
    at::NoGradGuard no_grad;
    SW_CHECK(static_cast<int>(rows.size()) == size() && rows[rank()] == x.size(0), "all_gather in {}: {} rows here", name_, x.size(0));
    const int64_t most = *std::max_element(rows.begin(), rows.end());
    if (most == 0) return x.detach();
    at::Tensor padded = x.detach().contiguous();
    if (x.size(0) < most) {
      padded = at::zeros(with_rows(x, most), x.options());
      padded.narrow(0, 0, x.size(0)).copy_(x.detach());
    }
    const at::Tensor all = gather_equal(padded);
    if (total(rows) == most * size()) return all;
    std::vector<at::Tensor> parts;
    for (int r = 0; r < size(); ++r) parts.push_back(all.narrow(0, r * most, rows[r]));
    return at::cat(parts, 0);
  }

  at::Tensor reduce_scatter(const at::Tensor& x, const Rows& rows) const override {
    at::NoGradGuard no_grad;
    SW_CHECK(static_cast<int>(rows.size()) == size() && total(rows) == x.size(0), "reduce_scatter in {}: {} rows", name_, x.size(0));
    const int64_t own = rows[rank()];
    const at::Tensor wire = x.detach().to(wire_type(x.scalar_type())).contiguous();
    const at::Tensor parts = exchange(wire, rows, Rows(static_cast<std::size_t>(size()), own));
    std::vector<int64_t> shape = with_rows(x, own);
    if (own == 0) return at::empty(shape, x.options());
    shape.insert(shape.begin(), size());
    return reduce_in_order(parts.view(shape), Reduce::kSum).to(x.scalar_type());
  }

  at::Tensor all_to_all(const at::Tensor& x, const Rows& send_rows, const Rows& receive_rows) const override {
    at::NoGradGuard no_grad;
    return exchange(x.detach().contiguous(), send_rows, receive_rows);
  }

  void send(const at::Tensor& x, int to) const override {
    std::vector<at::Tensor> bytes{as_bytes(x.detach().contiguous().clone())};
    // Whether a message has left is known only by waiting for it. The oldest of so many has: no stage of a pipeline runs further ahead than
    // its own number of micro-batches, with a teacher's and a student's message each.
    std::deque<Sent>& pending = pending_[to];
    while (pending.size() >= 2 * static_cast<std::size_t>(size())) {
      wait("send", [&] { return pending.front().work; });
      pending.pop_front();
    }
    try {
      pending.push_back({bytes[0], gloo_->send(bytes, to, 0)});
    } catch (const std::exception& error) {
      fail("send", error);
    }
  }

  void receive(at::Tensor& x, int from) const override {
    std::vector<at::Tensor> bytes{as_bytes(at::empty(x.sizes(), x.options().requires_grad(false)))};
    wait("receive", [&] { return gloo_->recv(bytes, from, 0); });
    x.detach().copy_(bytes[0].view(x.scalar_type()).view(x.sizes()));
  }

  void barrier() const override {
    wait("barrier", [&] { return gloo_->barrier(); });
  }

 private:
  struct Sent {
    at::Tensor bytes;   // kept until it has left
    c10::intrusive_ptr<c10d::Work> work;
  };

  static std::vector<int64_t> with_rows(const at::Tensor& x, int64_t rows) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape[0] = rows;
    return shape;
  }

  static at::Tensor as_bytes(const at::Tensor& x) { return x.flatten().view(at::kByte); }

  /// x [n, ...] on every rank -> [size*n, ...].
  at::Tensor gather_equal(const at::Tensor& x) const {
    at::Tensor all = at::empty(with_rows(x, size() * x.size(0)), x.options());
    if (x.numel() == 0) return all;
    at::Tensor to = as_bytes(all), from = as_bytes(x);
    wait("all_gather", [&] { return gloo_->_allgather_base(to, from); });
    return all;
  }

  at::Tensor exchange(const at::Tensor& x, const Rows& send_rows, const Rows& receive_rows) const {
    SW_CHECK(static_cast<int>(send_rows.size()) == size() && static_cast<int>(receive_rows.size()) == size() && total(send_rows) == x.size(0),
             "all_to_all in {}: {} rows", name_, x.size(0));
    at::Tensor out = at::empty(with_rows(x, total(receive_rows)), x.options());
    int64_t row_bytes = x.element_size();
    for (int64_t d = 1; d < x.dim(); ++d) row_bytes *= x.size(d);
    const auto in_bytes = [&](Rows rows) {
      for (int64_t& n : rows) n *= row_bytes;
      return rows;
    };
    Rows send = in_bytes(send_rows), receive = in_bytes(receive_rows);
    at::Tensor to = as_bytes(out), from = as_bytes(x);
    wait("all_to_all", [&] { return gloo_->alltoall_base(to, from, receive, send); });
    return out;
  }

  template <typename Start>
  void wait(const char* operation, Start&& start) const {
    watchdog_->doing(operation, name_.c_str());
    try {
      start()->wait();
    } catch (const std::exception& error) {
      fail(operation, error);
    }
    watchdog_->doing("computing after the last message in", name_.c_str());
  }

  [[noreturn]] void fail(const char* operation, const std::exception& error) const {
    watchdog_->await_cause(std::chrono::seconds(3));
    throw CommError(fmt::format("{} in group {} (ranks {}) failed on its rank {}: {}\nhint: another rank died, was stopped, or failed first: its own message says why",
                                operation, name_, fmt::join(ranks_, ","), rank(), error.what()));
  }

  std::string name_;
  std::vector<int> ranks_;
  c10::intrusive_ptr<Gloo> gloo_;
  std::shared_ptr<Watchdog> watchdog_;
  mutable std::map<int, std::deque<Sent>> pending_;   // by receiver, oldest first
};

/// This host's own address on the way to rank 0; empty when there is none. (Gloo's default, the address of the host's name, is 127.0.1.1 on
/// many machines, which no other host can reach.) Connecting a datagram socket sends nothing.
std::string own_address(const World& world) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(world.address.c_str(), std::to_string(world.port).c_str(), &hints, &found) != 0) return {};
  std::string result;
  for (const addrinfo* a = found; a && result.empty(); a = a->ai_next) {
    const int descriptor = ::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    char text[NI_MAXHOST];
    if (descriptor >= 0 && ::connect(descriptor, a->ai_addr, a->ai_addrlen) == 0 && ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      result = text;
    if (descriptor >= 0) ::close(descriptor);
  }
  ::freeaddrinfo(found);
  return result;
}

std::shared_ptr<gloo::transport::Device> network_device(const World& world) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) return Gloo::createDeviceForInterface(interface, false);
  const std::string own = own_address(world);
  return own.empty() ? Gloo::createDefaultDevice(false) : Gloo::createDeviceForHostname(own, false);
}

/// Rank 0 tells the others through the store where its watchdog listens.
Watchdog::Listener share_listener(const World& world, c10d::Store& store) {
  const std::string key = "watchdog";
  if (world.rank == 0) {
    const Watchdog::Listener listener = Watchdog::open_listener();
    const std::string text = std::to_string(listener.port);
    store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
    return listener;
  }
  const std::vector<std::uint8_t> text = store.get(key);
  return {-1, std::atoi(std::string(text.begin(), text.end()).c_str())};
}

}  // namespace

struct Rendezvous::State {
  World world;
  std::chrono::seconds timeout;
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<Watchdog> watchdog;
  c10::intrusive_ptr<Gloo::Options> options;
};

Rendezvous::Rendezvous(const World& world, std::chrono::seconds timeout, std::chrono::seconds silence) : state_(std::make_shared<State>()) {
  state_->world = world;
  state_->timeout = timeout;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(world.port);
  options.isServer = world.rank == 0 && !world.store_is_served;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(world.meeting_seconds);
  try {
    state_->store = c10::make_intrusive<c10d::PrefixStore>(world.prefix, c10::make_intrusive<c10d::TCPStore>(world.address, options));
    state_->options = Gloo::Options::create(timeout);
    state_->options->devices.push_back(network_device(world));
    state_->watchdog = std::make_shared<Watchdog>(world, share_listener(world, *state_->store), silence);
  } catch (const std::exception& error) {
    throw CommError(fmt::format("rank {} of {} cannot meet the others at {}:{}: {}\nhint: is rank 0 running, and is the port free and open between the hosts?",
                                world.rank, world.size, world.address, world.port, error.what()));
  }
}

Rendezvous::~Rendezvous() = default;

const std::shared_ptr<Watchdog>& Rendezvous::watchdog() const { return state_->watchdog; }

std::unique_ptr<Group> Rendezvous::group(const std::string& name, const std::vector<int>& ranks) const {
  if (ranks.size() == 1) return make_single_group();
  const auto own = std::find(ranks.begin(), ranks.end(), state_->world.rank);
  SW_CHECK(own != ranks.end(), "rank {} is not in group {}", state_->world.rank, name);
  try {
    auto gloo = c10::make_intrusive<Gloo>(c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", name, ranks[0]), state_->store),
                                          static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()), state_->options);
    return make_host_group(std::make_unique<GlooGroup>(name, ranks, std::move(gloo), state_->watchdog));
  } catch (const std::exception& error) {
    throw CommError(fmt::format("group {} of ranks {} does not come together within {} s: {}", name, fmt::join(ranks, ","), state_->timeout.count(), error.what()));
  }
}

}  // namespace scalewright
