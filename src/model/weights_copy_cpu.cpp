#include <ATen/Parallel.h>

#include <mutex>

#include "base/error.h"
#include "model/weights_copy.h"

namespace scalewright {

namespace {

constexpr std::size_t kTaskBytes = std::size_t{1} << 20;   // what a thread takes at a time
constexpr std::size_t kCacheBytes = std::size_t{1} << 15;  // copied, then checked while still in the first cache

/// Whether some word has all exponent bits set. Words are read by memcpy: mapped tensors may lie at odd addresses.
__attribute__((target_clones("default", "avx2", "avx512f"))) bool any_all_ones16(const std::byte* data, std::size_t words, std::uint16_t exponent) {
  std::uint16_t found = 0;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint16_t word;
    std::memcpy(&word, data + 2 * i, 2);
    found |= static_cast<std::uint16_t>((word & exponent) == exponent ? 1 : 0);
  }
  return found != 0;
}

__attribute__((target_clones("default", "avx2", "avx512f"))) bool any_all_ones32(const std::byte* data, std::size_t words, std::uint32_t exponent) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint32_t word;
    std::memcpy(&word, data + 4 * i, 4);
    found |= (word & exponent) == exponent ? 1u : 0u;
  }
  return found != 0;
}

bool any_non_finite(std::span<const std::byte> bytes, at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return any_all_ones16(bytes.data(), bytes.size() / 2, 0x7F80);
  if (dtype == at::kHalf) return any_all_ones16(bytes.data(), bytes.size() / 2, 0x7C00);
  SW_CHECK(dtype == at::kFloat, "{}", c10::toString(dtype));
  return any_all_ones32(bytes.data(), bytes.size() / 4, 0x7F800000);
}

struct Task {
  std::size_t copy, begin, end;   // bytes of one WeightCopy
};

std::vector<Task> cut(const std::vector<WeightCopy>& copies) {
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::size_t size = copies[i].from.size();
    for (std::size_t begin = 0; begin < size; begin += kTaskBytes) tasks.push_back({i, begin, std::min(size, begin + kTaskBytes)});
  }
  return tasks;
}

/// Whether a value of the task is not finite; copies it whole in any case.
bool run(const Task& task, const WeightCopy& copy, at::ScalarType dtype) {
  bool found = false;
  for (std::size_t begin = task.begin; begin < task.end; begin += kCacheBytes) {
    const std::span<const std::byte> part = copy.from.subspan(begin, std::min(kCacheBytes, task.end - begin));
    if (copy.to) std::memcpy(copy.to + begin, part.data(), part.size());
    found = any_non_finite(part, dtype) || found;
  }
  return found;
}

}  // namespace

std::optional<std::size_t> first_non_finite(std::span<const std::byte> bytes, at::ScalarType dtype) {
  if (!any_non_finite(bytes, dtype)) return std::nullopt;
  const std::size_t width = c10::elementSize(dtype);
  std::size_t index = 0;
  while (!any_non_finite(bytes.subspan(index * width, width), dtype)) ++index;
  return index;
}

std::optional<NonFinite> copy_weights(const std::vector<WeightCopy>& copies, at::ScalarType dtype) {
  const std::vector<Task> tasks = cut(copies);
  std::mutex mutex;
  std::optional<std::size_t> first;   // the task, so that the answer does not depend on which thread was faster
  at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (!run(tasks[i], copies[tasks[i].copy], dtype)) continue;
      const std::lock_guard lock(mutex);
      if (!first || static_cast<std::size_t>(i) < *first) first = i;
    }
  });
  if (!first) return std::nullopt;
  const Task& task = tasks[*first];
  const std::size_t width = c10::elementSize(dtype);
  const std::size_t index = *first_non_finite(copies[task.copy].from.subspan(task.begin, task.end - task.begin), dtype);
  return NonFinite{task.copy, task.begin / width + index};
}

}  // namespace scalewright
