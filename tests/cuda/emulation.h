// CUDA on the host, for tests: a *_cuda.cu file compiled by g++ with SW_CUDA_EMULATION runs its kernels here, one block after the other,
// every thread of a block as a coroutine of its own. Threads run in a shuffled order between two barriers, so that a missing barrier
// gives a wrong result; a barrier that not all threads reach ends the program with a message. What it cannot show: memory that a GPU
// cannot address, races within a warp that lockstep hides or makes, and speed.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static   // blocks run one at a time

struct EmulatedIndex {
  unsigned x = 0, y = 0, z = 0;
};
extern EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

/// Runs body() as every thread of every block. Seeded shuffles: the same order in every run.
void run_grid(const char* kernel, int64_t blocks, int threads, const std::function<void()>& body);
void block_barrier();
void warp_barrier();
/// 16 bytes of a thread of the block for the running exchange within its warp. Two slots take turns: a thread that is one exchange ahead
/// does not overwrite what others still read.
void* exchange_slot(unsigned thread, unsigned turn);
unsigned next_turn();   // of this thread
int64_t launches();   // so far

}  // namespace emulation

inline void __syncthreads() { emulation::block_barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { emulation::warp_barrier(); }

template <class T>
T __shfl_sync(unsigned, T value, int source_lane) {
  static_assert(sizeof(T) <= 16);
  const unsigned turn = emulation::next_turn();
  std::memcpy(emulation::exchange_slot(threadIdx.x, turn), &value, sizeof(T));
  emulation::warp_barrier();
  T other;
  std::memcpy(&other, emulation::exchange_slot((threadIdx.x & ~31u) + static_cast<unsigned>(source_lane), turn), sizeof(T));
  return other;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return __shfl_sync(mask, value, static_cast<int>((threadIdx.x & 31u) ^ static_cast<unsigned>(distance)));
}

/// Threads run one at a time, so additions need no care.
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to = before + value;
  return before;
}

#define SW_LAUNCH(kernel, blocks, threads, stream, ...) \
  ((void)(stream), emulation::run_grid(#kernel, (blocks), (threads), [&] { kernel(__VA_ARGS__); }))
