// AdamW's update on a GPU, on plain device pointers; only queues work on `stream`. The CPU's bits.
#pragma once
#include <cstdint>

#include "ops/cuda_types.h"
#include "train/adamw_math.h"

namespace scalewright::cuda {

/// p, m, v and g [count], all float64 or all float32.
void launch_adamw(const AdamWUpdate& update, Element element, void* p, const void* g, void* m, void* v, int64_t count, cudaStream_t stream);

}  // namespace scalewright::cuda
