// Tasks of unequal length over ATen's threads.
#pragma once
#include <ATen/Parallel.h>

#include <atomic>

namespace scalewright {

/// Each thread runs worker(next), where next() yields task numbers 0 .. count-1, each given once, and -1 at the end.
/// Who does what varies, so tasks must not depend on each other.
template <typename Worker>
void parallel_tasks(int64_t count, Worker&& worker) {
  std::atomic<int64_t> taken{0};
  const auto next = [&] {
    const int64_t task = taken.fetch_add(1, std::memory_order_relaxed);
    return task < count ? task : int64_t{-1};
  };
  at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t, int64_t) { worker(next); });
}

}  // namespace scalewright
