#include "emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "ops/cuda_types.h"

EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr unsigned kWarp = 32;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Thread {
  ucontext_t start;   // to enter it; afterwards jumps, which, unlike swapcontext, make no system call
  jmp_buf at;
  bool entered = false;
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  State state = State::kReady;
  unsigned turn = 0;
  alignas(16) char slots[2][16];
};

std::vector<Thread> g_threads;
ucontext_t g_unused;
jmp_buf g_scheduler;
unsigned g_current = 0;
const std::function<void()>* g_body = nullptr;
int64_t g_launches = 0;

void enter() {
  (*g_body)();
  g_threads[g_current].state = State::kDone;
  _longjmp(g_scheduler, 1);
}

void prepare(Thread& thread) {
  thread.state = State::kReady;
  thread.entered = false;
  thread.turn = 0;
}

void wait_at(State barrier) {
  Thread& self = g_threads[g_current];
  self.state = barrier;
  if (_setjmp(self.at) == 0) _longjmp(g_scheduler, 1);
}

/// Runs the thread until its next barrier or its end. Apart, because getcontext and setjmp return twice.
__attribute__((noinline)) void resume(Thread& thread) {
  if (_setjmp(g_scheduler) != 0) return;
  if (thread.entered) _longjmp(thread.at, 1);
  thread.entered = true;
  getcontext(&thread.start);
  thread.start.uc_stack = {thread.stack.get(), 0, kStackBytes};
  thread.start.uc_link = nullptr;
  makecontext(&thread.start, enter, 0);
  swapcontext(&g_unused, &thread.start);
}

[[noreturn]] void fail(const char* kernel, const char* what) {
  std::fprintf(stderr, "emulated kernel %s, block %u: %s\n", kernel, blockIdx.x, what);
  std::abort();
}

/// Opens the barriers of warps, then that of the block; false when all threads are done.
bool open_barriers(const char* kernel, unsigned threads) {
  unsigned done = 0, at_block = 0;
  bool opened = false;
  for (unsigned first = 0; first < threads; first += kWarp) {
    const unsigned end = std::min(threads, first + kWarp);
    unsigned at_warp = 0;
    for (unsigned t = first; t < end; ++t) {
      at_warp += g_threads[t].state == State::kAtWarpBarrier;
      at_block += g_threads[t].state == State::kAtBlockBarrier;
      done += g_threads[t].state == State::kDone;
    }
    if (at_warp == 0) continue;
    if (at_warp != kWarp) fail(kernel, "a warp's barrier or exchange that not all of its 32 lanes reach");
    for (unsigned t = first; t < end; ++t) g_threads[t].state = State::kReady;
    opened = true;
  }
  if (opened) return true;
  if (done == threads) return false;
  if (at_block != threads) fail(kernel, "__syncthreads() that not all threads reach");
  for (unsigned t = 0; t < threads; ++t) g_threads[t].state = State::kReady;
  return true;
}

}  // namespace

void run_grid(const char* kernel, int64_t blocks, int threads, const std::function<void()>& body) {
  ++g_launches;
  if (threads < 1 || threads > 1024) fail(kernel, "a block has 1 to 1024 threads");
  if (blocks > 0x7fffffff) fail(kernel, "a grid has at most 2^31 - 1 blocks");
  const auto count = static_cast<unsigned>(threads);
  if (g_threads.size() < count) g_threads = std::vector<Thread>(count);
  g_body = &body;
  blockDim = {count, 1, 1};
  gridDim = {static_cast<unsigned>(blocks), 1, 1};
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::minstd_rand random(1);
  for (int64_t block = 0; block < blocks; ++block) {
    blockIdx = {static_cast<unsigned>(block), 0, 0};
    for (unsigned t = 0; t < count; ++t) {
      prepare(g_threads[t]);
    }
    do {
      std::shuffle(order.begin(), order.end(), random);
      for (const unsigned t : order) {
        if (g_threads[t].state != State::kReady) continue;
        g_current = t;
        threadIdx = {t, 0, 0};
        resume(g_threads[t]);
      }
    } while (open_barriers(kernel, count));
  }
  g_body = nullptr;
}

void block_barrier() { wait_at(State::kAtBlockBarrier); }
void warp_barrier() { wait_at(State::kAtWarpBarrier); }
void* exchange_slot(unsigned thread, unsigned turn) { return g_threads[thread].slots[turn]; }
unsigned next_turn() { return g_threads[g_current].turn ^= 1u; }
int64_t launches() { return g_launches; }

}  // namespace emulation

namespace at {
class Tensor;
}

namespace scalewright::cuda {

cudaStream_t stream_of(const at::Tensor&) { return nullptr; }

void launch_failed(const char* kernel, const char* message) { throw BugError(std::string("kernel ") + kernel + ": " + message); }

}  // namespace scalewright::cuda
