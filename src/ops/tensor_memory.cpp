#include "ops/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>

#include "base/error.h"

namespace scalewright {

namespace {

class CountingAllocator;
CountingAllocator& counting_allocator();

/// Hands on to torch's own allocator and counts what malloc gave. A block's context is its data, as torch's raw allocations (oneDNN's
/// scratch memory) demand, so its size is asked from malloc when it is freed. One object for the whole program: torch keeps a pointer to it.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr block = inner_->allocate(bytes);
    SW_CHECK(block.compare_exchange_deleter(inner_->raw_deleter(), &CountingAllocator::free), "torch's CPU allocator is not the plain one");
    const int64_t now = held_ += size_of(block.get());
    for (int64_t peak = peak_; now > peak && !peak_.compare_exchange_weak(peak, now);) {
    }
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  int64_t peak() const { return peak_; }
  void reset() { peak_ = held_.load(); }

 private:
  static int64_t size_of(void* data) { return static_cast<int64_t>(::malloc_usable_size(data)); }
  static void free(void* data) {
    CountingAllocator& allocator = counting_allocator();
    allocator.held_ -= size_of(data);
    allocator.inner_->raw_deleter()(data);
  }

  c10::Allocator* inner_;
  std::atomic<int64_t> held_ = 0, peak_ = 0;
};

CountingAllocator& counting_allocator() {
  static auto* const allocator = new CountingAllocator(c10::GetCPUAllocator());   // tensors of static objects may outlive everything else
  return *allocator;
}

}  // namespace

void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 28);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 29);
  ::mallopt(M_TOP_PAD, 1 << 26);
}

void count_tensor_memory() { c10::SetCPUAllocator(&counting_allocator(), 1); }
int64_t peak_tensor_bytes() { return counting_allocator().peak(); }
void reset_peak_tensor_bytes() { counting_allocator().reset(); }

}  // namespace scalewright
