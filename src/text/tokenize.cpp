#include "text/tokenize.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

namespace scalewright {
namespace {

constexpr std::size_t kBlocksInFlight = 4;  // a worker

/// Blocks on their way to and from the workers.
class Exchange {
 public:
  void put(int64_t index, LineBlock block) {
    const std::lock_guard lock(mutex_);
    todo_.emplace_back(index, std::move(block));
    changed_.notify_all();
  }

  /// For a worker: the next block, or nothing when all is done.
  std::optional<std::pair<int64_t, LineBlock>> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !todo_.empty(); });
    if (closed_) return std::nullopt;
    auto next = std::move(todo_.front());
    todo_.pop_front();
    return next;
  }

  void give_back(int64_t index, LineBlock block) {
    const std::lock_guard lock(mutex_);
    done_.emplace(index, std::move(block));
    changed_.notify_all();
  }

  void fail(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    changed_.notify_all();
  }

  /// For the owner: block `index`, tokenized. Throws a worker's error.
  LineBlock wait_for(int64_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || done_.contains(index); });
    if (error_) std::rethrow_exception(error_);
    return std::move(done_.extract(index).mapped());
  }

  /// Ends the workers; blocks that none has taken are dropped.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, LineBlock>> todo_;
  std::map<int64_t, LineBlock> done_;
  std::exception_ptr error_;
  bool closed_ = false;
};

void serve_blocks(const std::filesystem::path& model, Exchange& exchange) {
  try {
    TextWorker worker(model);
    while (auto next = exchange.take()) {
      next->second.samples = worker.encode_lines(next->second.lines, next->second.options);
      exchange.give_back(next->first, std::move(next->second));
    }
  } catch (...) {
    exchange.fail(std::current_exception());
  }
}

}  // namespace

void tokenize_blocks(const std::filesystem::path& model, int64_t workers, const std::function<std::optional<LineBlock>()>& source,
                     const std::function<void(LineBlock)>& sink) {
  Exchange exchange;
  std::vector<std::jthread> threads;
  struct Closing {
    Exchange& exchange;
    ~Closing() { exchange.close(); }
  } closing{exchange};  // declared after the threads, so destroyed before they are joined
  for (int64_t i = 0; i < workers; ++i) threads.emplace_back([&] { serve_blocks(model, exchange); });
  const int64_t limit = workers * static_cast<int64_t>(kBlocksInFlight);
  int64_t given = 0, received = 0;
  for (bool more = true; more || received < given;) {
    while (more && given - received < limit) {
      std::optional<LineBlock> block = source();
      if (!block) more = false;
      else exchange.put(given++, std::move(*block));
    }
    if (received < given) sink(exchange.wait_for(received++));
  }
}

}  // namespace scalewright
