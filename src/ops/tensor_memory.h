// How many bytes of tensors the CPU allocator holds.
#pragma once
#include <cstdint>

namespace scalewright {

/// From now on CPU tensors are counted. Call once, before the first tensor.
void count_tensor_memory();

/// The most bytes held at once since counting began, or since the last reset. Mapped files are not among them.
int64_t peak_tensor_bytes();
void reset_peak_tensor_bytes();   // to what is held now

}  // namespace scalewright
