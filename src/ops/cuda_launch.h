// How the *_cuda.cu files start kernels. They are compiled by nvcc for GPUs, and by g++ for the host with SW_CUDA_EMULATION
// (tests/cuda/emulation.h), where the same kernel bodies run thread by thread: so the index arithmetic is tested without a GPU.
#pragma once
#include <cstdint>

#include "ops/cuda_types.h"
#include "ops/element_math.h"

#if defined(SW_CUDA_EMULATION)
#include "emulation.h"
#else
#include <cuda_runtime.h>
/// Starts kernel<<<blocks, threads>>>(...) on a stream; nothing waits. A failed start is a BugError.
#define SW_LAUNCH(kernel, blocks, threads, stream, ...)                                       \
  do {                                                                                        \
    const int64_t sw_blocks = (blocks);                                                       \
    if (sw_blocks > 0) {                                                                      \
      ::scalewright::cuda::check_blocks(#kernel, sw_blocks);                                  \
      kernel<<<static_cast<unsigned>(sw_blocks), (threads), 0, (stream)>>>(__VA_ARGS__);      \
      if (const cudaError_t sw_error = cudaGetLastError(); sw_error != cudaSuccess)           \
        ::scalewright::cuda::launch_failed(#kernel, cudaGetErrorString(sw_error));            \
    }                                                                                         \
  } while (false)
#endif

namespace scalewright::cuda {

[[noreturn]] void launch_failed(const char* kernel, const char* message);
/// A grid has at most 2^31 - 1 blocks.
inline void check_blocks(const char* kernel, int64_t blocks) {
  if (blocks > 0x7fffffff) launch_failed(kernel, "too many blocks");
}

inline constexpr int kThreads = 256;   // of a block, where nothing else is said
inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffu;

inline int64_t blocks_for(int64_t threads, int64_t per_block = kThreads) { return (threads + per_block - 1) / per_block; }

/// This thread's number in the grid.
__device__ __forceinline__ int64_t thread_number() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

/// f(T{}) for the type of the elements.
template <class F>
void with_element(Element element, F&& f) {
  switch (element) {
    case Element::kFloat64: return f(double{});
    case Element::kFloat32: return f(float{});
    case Element::kBFloat16: return f(Bf16{});
  }
}

/// The sum over 8 or 16 neighbouring lanes in the order of the CPU's trees: halves first (lane + 4, then + 2, + 1, or another order of
/// the same exchanges); every lane gets it. All lanes of the warp must call it.
template <class A>
__device__ __forceinline__ A add_lanes(A value, int distance) {
  return value + __shfl_xor_sync(kWholeWarp, value, distance);
}

/// The largest over the warp, as unsigned integers.
__device__ __forceinline__ std::uint32_t warp_max(std::uint32_t value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kWholeWarp, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

}  // namespace scalewright::cuda
