#include "ops/tensor_memory.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>

namespace scalewright {

namespace {

/// Hands on to torch's own allocator and counts. One object for the whole program: torch keeps a pointer to it.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    auto block = std::make_unique<Block>(Block{inner_->allocate(bytes), static_cast<int64_t>(bytes), this});
    const int64_t now = held_ += block->bytes;
    for (int64_t peak = peak_; now > peak && !peak_.compare_exchange_weak(peak, now);) {
    }
    void* const data = block->data.get();
    const c10::Device device = block->data.device();
    return {data, block.release(), &CountingAllocator::free, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  int64_t peak() const { return peak_; }
  void reset() { peak_ = held_.load(); }

 private:
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
    CountingAllocator* owner;
  };
  static void free(void* block) {
    const std::unique_ptr<Block> own(static_cast<Block*>(block));
    own->owner->held_ -= own->bytes;
  }

  c10::Allocator* inner_;
  std::atomic<int64_t> held_ = 0, peak_ = 0;
};

CountingAllocator& counting_allocator() {
  static auto* const allocator = new CountingAllocator(c10::GetCPUAllocator());   // tensors of static objects may outlive everything else
  return *allocator;
}

}  // namespace

void count_tensor_memory() { c10::SetCPUAllocator(&counting_allocator(), 1); }
int64_t peak_tensor_bytes() { return counting_allocator().peak(); }
void reset_peak_tensor_bytes() { counting_allocator().reset(); }

}  // namespace scalewright
