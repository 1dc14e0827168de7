// Shared by the row kernels of *_cuda.cu: where a row lies, which element a thread has.
#pragma once
#include "ops/cuda_launch.h"
#include "ops/row_math.h"
#include "ops/rows_cuda.h"

namespace scalewright::cuda {

template <class T>
__device__ __forceinline__ const T* row_of(const RowsView& rows, int64_t row) {
  const int64_t offset = rows.inner == 1 ? row * rows.outer_stride : (row / rows.inner) * rows.outer_stride + (row % rows.inner) * rows.inner_stride;
  return static_cast<const T*>(rows.data) + offset;
}

/// A thread an element of a row: a row takes whole blocks, so that only block numbers are divided.
struct Place {
  int64_t row, column;
};
__device__ __forceinline__ Place place_in(int64_t width) {
  const int64_t per_row = (width + kThreads - 1) / kThreads;
  return {static_cast<int64_t>(blockIdx.x) / per_row, static_cast<int64_t>(blockIdx.x) % per_row * kThreads + threadIdx.x};
}
inline int64_t blocks_for_rows(int64_t rows, int64_t width) { return rows * blocks_for(width); }

/// The sum over the 16 lanes that share a row, in the order of sum_lanes (vector_math.h); all lanes of the warp must call it.
template <class A>
__device__ __forceinline__ A add_row_lanes(A lane) {
  return add_lanes(add_lanes(add_lanes(add_lanes(lane, 8), 4), 2), 1);
}

}  // namespace scalewright::cuda
