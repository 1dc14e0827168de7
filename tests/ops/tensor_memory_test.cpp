#include "ops/tensor_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

namespace scalewright {
namespace {

constexpr int64_t kBytes = 1 << 22, kRounding = 1 << 13;   // malloc rounds up to pages

TEST(TensorMemory, CountsTensorsAndRawAllocations) {
  count_tensor_memory();
  reset_peak_tensor_bytes();
  const int64_t before = peak_tensor_bytes();
  { const at::Tensor tensor = at::empty({kBytes}, at::kByte); }
  EXPECT_NEAR(peak_tensor_bytes() - before, kBytes, kRounding);
  // oneDNN's products on CPUs with bf16 instructions take their scratch memory in this way.
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  reset_peak_tensor_bytes();
  void* const raw = allocator->raw_allocate(2 * kBytes);
  EXPECT_NEAR(peak_tensor_bytes() - before, 2 * kBytes, kRounding);
  allocator->raw_deallocate(raw);
  reset_peak_tensor_bytes();
  EXPECT_EQ(peak_tensor_bytes(), before);
  EXPECT_EQ(at::empty({0}).numel(), 0);
}

}  // namespace
}  // namespace scalewright
