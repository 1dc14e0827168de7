#include "quant/quantize_cuda.h"

#include "ops/cuda_launch.h"

namespace scalewright::cuda {
namespace {

using namespace scale_rules;
using numeric::bits_of;
using numeric::float_of;

constexpr int kChunk = 16;   // neighbours that one thread quantizes

/// Neighbours that one instruction moves.
template <class T>
struct alignas(16) Pack {
  T values[16 / sizeof(T)];
};

__device__ __forceinline__ bool is_aligned(const void* p) { return (reinterpret_cast<std::uintptr_t>(p) & 15u) == 0; }

/// n <= 16 neighbours as float32; the rest is 0.
template <class T>
__device__ __forceinline__ void load_chunk(const T* from, int n, float (&to)[kChunk]) {
  constexpr int kPack = 16 / sizeof(T);
  if (n == kChunk && is_aligned(from)) {
#pragma unroll
    for (int p = 0; p < kChunk / kPack; ++p) {
      const Pack<T> pack = reinterpret_cast<const Pack<T>*>(from)[p];
#pragma unroll
      for (int i = 0; i < kPack; ++i) to[p * kPack + i] = static_cast<float>(load(pack.values[i]));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i] = i < n ? static_cast<float>(load(from[i])) : 0.0f;
}

template <class T>
__device__ __forceinline__ void store_chunk(const float (&from)[kChunk], int n, T* to) {
  constexpr int kPack = 16 / sizeof(T);
  if (n == kChunk && is_aligned(to)) {
#pragma unroll
    for (int p = 0; p < kChunk / kPack; ++p) {
      Pack<T> pack;
#pragma unroll
      for (int i = 0; i < kPack; ++i) pack.values[i] = store<T>(from[p * kPack + i]);
      reinterpret_cast<Pack<T>*>(to)[p] = pack;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    if (i < n) to[i] = store<T>(from[i]);
}

/// body(grid) for the grid of a rounder; all threads take the same way.
template <class Body>
__device__ __forceinline__ void with_grid(const Rounder& rounder, Body body) {
  switch (rounder.rounding) {
    case Rounding::kE2M1Even: return body(grids::E2M1Even{});
    case Rounding::kE2M1TowardZero: return body(grids::E2M1TowardZero{});
    case Rounding::kInteger: return body(grids::Integer{rounder.low, rounder.high});
    case Rounding::kIntegerAway: return body(grids::IntegerAway{rounder.low, rounder.high});
    case Rounding::kE4M3: return body(grids::E4M3{});
  }
}

__device__ __forceinline__ void quantize_chunk(const Rounder& rounder, const GroupScale& scale, float (&x)[kChunk]) {
  with_grid(rounder, [&](const auto& grid) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = grids::fake_quantized(grid, x[i], scale.divide, scale.multiply);
  });
}

__device__ __forceinline__ std::uint32_t magnitude_bits(float x) { return bits_of(x) & 0x7fffffffu; }

/// The largest over a block of kThreads, as unsigned integers; all threads must call it and get it.
__device__ std::uint32_t block_max(std::uint32_t value) {
  __shared__ std::uint32_t warps[kThreads / kWarp];
  value = warp_max(value);
  __syncthreads();   // the array may still be read from a call before
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  std::uint32_t largest = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) largest = warps[w] > largest ? warps[w] : largest;
  return largest;
}

__device__ __forceinline__ GroupScale weight_scale(const WeightView& v, int64_t row, int64_t g) {
  const float ref = v.ref[row * v.groups + g], alpha = v.alpha[row * v.groups + g];
  const int64_t expert = row / v.rows_per_expert;
  if (v.rules != Rules::kDeploy) return v.two_level ? peer_two_level(v.rules, ref, alpha, v.global[expert]) : peer_one_level(v.rules, v.one_level.qmax, ref, alpha);
  if (v.two_level) return deploy_two_level(ref, alpha, v.global[expert], v.divisor[expert]);
  float stored = deploy_stored(v.one_level, ref, alpha), effective = stored;
  if (v.vllm_w4afp8) {
    effective = vllm_w4afp8_scale(stored, v.row_c[2 * row]);
    stored = round_scale(v.one_level.type, numeric::clamp(effective, v.one_level.low, v.one_level.high));
    effective = vllm_w4afp8_scale(stored, v.row_c[2 * row + 1]);
  }
  return deploy_one_level(v.one_level, ref, alpha, stored, effective);
}

/// A warp a group.
template <class T>
__global__ void group_amax_kernel(const T* x, int64_t count, int64_t group, float* largest) {
  const int64_t index = thread_number() / kWarp;
  std::uint32_t bits = 0;
  for (int64_t i = threadIdx.x % kWarp; index < count && i < group; i += kWarp) {
    const std::uint32_t b = magnitude_bits(static_cast<float>(load(x[index * group + i])));
    bits = b > bits ? b : bits;
  }
  bits = warp_max(bits);
  if (index < count && threadIdx.x % kWarp == 0) largest[index] = float_of(bits);
}

/// A warp a row. Scales are positive, so that their bits are ordered as they are (a NaN alone would be larger; the CPU ignores it).
__global__ void vllm_row_c_kernel(WeightView v, int64_t rows, float* row_c) {
  const int64_t row = thread_number() / kWarp;
  const auto largest_over_448 = [&](auto scale_of) {
    std::uint32_t bits = 0;
    for (int64_t g = threadIdx.x % kWarp; row < rows && g < v.groups; g += kWarp) {
      const float scale = scale_of(deploy_stored(v.one_level, v.ref[row * v.groups + g], v.alpha[row * v.groups + g]));
      const std::uint32_t b = scale > 0.0f ? bits_of(scale) : 0u;
      bits = b > bits ? b : bits;
    }
    return float_of(warp_max(bits)) / numeric::kE4M3Max;
  };
  const float first = largest_over_448([](float stored) { return stored; });
  const float second = largest_over_448([&](float stored) {
    return round_scale(v.one_level.type, numeric::clamp(vllm_w4afp8_scale(stored, first), v.one_level.low, v.one_level.high));
  });
  if (row < rows && threadIdx.x % kWarp == 0) {
    row_c[2 * row] = first;
    row_c[2 * row + 1] = second;
  }
}

/// A thread a chunk of a group.
template <class From, class To>
__global__ void fake_quantize_weight_kernel(WeightView v, const From* w, To* out, int64_t chunks, int64_t chunks_per_group) {
  const int64_t index = thread_number();
  if (index >= chunks) return;
  const int64_t group_index = index / chunks_per_group, row = group_index / v.groups, g = group_index % v.groups;
  const int64_t begin = index % chunks_per_group * kChunk, at = row * v.columns + g * v.group + begin;
  const int n = static_cast<int>(v.group - begin < kChunk ? v.group - begin : kChunk);
  float x[kChunk];
  load_chunk(w + at, n, x);
  quantize_chunk(v.rounder, weight_scale(v, row, g), x);
  store_chunk(x, n, out + at);
}

/// Eight lanes a group, the CPU's partial sums.
template <class W, class D>
__global__ void weight_alpha_gradient_kernel(WeightView v, const W* w, const D* dw, double factor, Accurate<D>* d_alpha, int64_t first_row, int64_t groups) {
  const int64_t index = thread_number() / grids::kGradientLanes;
  const int lane = static_cast<int>(threadIdx.x % grids::kGradientLanes);
  double sum = 0.0, slope = 0.0;
  if (index < groups) {
    const int64_t row = index / v.groups, g = index % v.groups;
    const GroupScale scale = weight_scale(v, first_row + row, g);
    slope = scale.slope;
    const W* const wg = w + (first_row + row) * v.columns + g * v.group;
    const D* const dg = dw + row * v.columns + g * v.group;
    with_grid(v.rounder, [&](const auto& grid) {
      for (int64_t i = lane; i < v.group; i += grids::kGradientLanes)
        sum += static_cast<double>(load(dg[i])) *
               static_cast<double>(grids::scale_slope(grid, static_cast<float>(load(wg[i])), scale.divide, scale.low, scale.high));
    });
  }
  sum = add_lanes(add_lanes(add_lanes(sum, 4), 1), 2);   // ((0+4)+(1+5)) + ((2+6)+(3+7))
  if (index < groups && lane == 0 && slope != 0.0) d_alpha[first_row * v.groups + index] += static_cast<Accurate<D>>(sum * slope * factor);
}

__device__ __forceinline__ int64_t segment_of(const ActivationView& v, int64_t row) {
  int64_t low = 0, high = v.segments;   // the last segment that begins at or before the row; empty ones before it are passed over
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (v.offsets[middle] <= row) low = middle;
    else high = middle;
  }
  return low;
}

/// The scale of a block from its 16 values.
__device__ __forceinline__ GroupScale block_scale(const ActivationView& v, int64_t row, const float (&x)[kChunk]) {
  std::uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) bits = magnitude_bits(x[i]) > bits ? magnitude_bits(x[i]) : bits;
  const float amax = float_of(bits), global = v.globals[segment_of(v, row)];
  return v.deploy ? deploy_block(amax, global) : peer_block(amax, global);
}

/// A thread a block of 16.
template <class T>
__global__ void activation_blocks_kernel(ActivationView v, const T* x, T* out, int64_t blocks) {
  const int64_t index = thread_number();
  if (index >= blocks) return;
  float values[kChunk];
  load_chunk(x + index * kChunk, kChunk, values);
  quantize_chunk(v.rounder, block_scale(v, index * kChunk / v.columns, values), values);
  store_chunk(values, kChunk, out + index * kChunk);
}

/// The scale of a token; all threads of its block must call it.
template <class T>
__device__ __forceinline__ GroupScale row_scale(const ActivationView& v, const T* row, int64_t index) {
  float amax;
  if (v.row_amax) {
    amax = v.row_amax[index];
  } else {
    std::uint32_t bits = 0;
    for (int64_t i = threadIdx.x; i < v.columns; i += kThreads) {
      const std::uint32_t b = magnitude_bits(static_cast<float>(load(row[i])));
      bits = b > bits ? b : bits;
    }
    amax = float_of(block_max(bits));
  }
  return token_scale(v.deploy, v.qmax, amax);
}

/// A block of threads a token.
template <class T>
__global__ void activation_tokens_kernel(ActivationView v, const T* x, T* out) {
  const T* const row = x + static_cast<int64_t>(blockIdx.x) * v.columns;
  T* const to = out + static_cast<int64_t>(blockIdx.x) * v.columns;
  const GroupScale scale = row_scale(v, row, blockIdx.x);
  with_grid(v.rounder, [&](const auto& grid) {
    for (int64_t i = threadIdx.x; i < v.columns; i += kThreads)
      to[i] = store<T>(grids::fake_quantized(grid, static_cast<float>(load(row[i])), scale.divide, scale.multiply));
  });
}

template <class T>
__global__ void block_gradient_kernel(ActivationView v, const T* x, const T* dy, T* dx, double* terms, int64_t blocks) {
  const int64_t index = thread_number();
  if (index >= blocks) return;
  float values[kChunk];
  load_chunk(x + index * kChunk, kChunk, values);
  const GroupScale scale = block_scale(v, index * kChunk / v.columns, values);
  const T* const d = dy + index * kChunk;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) dx[index * kChunk + i] = grids::is_in_range(values[i] / scale.divide, scale.low, scale.high) ? d[i] : store<T>(0);
  if (!terms) return;
  double lanes[grids::kGradientLanes] = {};
  with_grid(v.rounder, [&](const auto& grid) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      lanes[i % grids::kGradientLanes] += static_cast<double>(load(d[i])) * static_cast<double>(grids::scale_slope(grid, values[i], scale.divide, scale.low, scale.high));
  });
  terms[index] = (((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]))) * scale.slope;
}

template <class T>
__global__ void token_gradient_kernel(ActivationView v, const T* x, const T* dy, T* dx) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * v.columns;
  const GroupScale scale = row_scale(v, x + begin, blockIdx.x);
  for (int64_t i = threadIdx.x; i < v.columns; i += kThreads)
    dx[begin + i] = grids::is_in_range(static_cast<float>(load(x[begin + i])) / scale.divide, scale.low, scale.high) ? dy[begin + i] : store<T>(0);
}

__global__ void activation_globals_kernel(bool deploy, const float* ref, const float* alpha, int64_t count, float* globals) {
  const int64_t i = thread_number();
  if (i < count) globals[i] = activation_global(deploy, ref[i], alpha[i]);
}

/// A thread a row: the blocks in order.
__global__ void sum_terms_kernel(const double* terms, int64_t rows, int64_t blocks, double* by_row) {
  const int64_t row = thread_number();
  if (row >= rows) return;
  double sum = 0.0;
  for (int64_t b = 0; b < blocks; ++b) sum += terms[row * blocks + b];
  by_row[row] = sum;
}

/// A block of threads a segment: each thread adds up every 256th row, then their sums are added in order.
__global__ void global_gradient_kernel(ActivationView v, const double* by_row, const float* ref, const float* alpha, double factor, double* gradient) {
  __shared__ double sums[kThreads];
  const int64_t segment = blockIdx.x;
  double sum = 0.0;
  for (int64_t row = v.offsets[segment] + threadIdx.x; row < v.offsets[segment + 1]; row += kThreads) sum += by_row[row];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (int t = 0; t < kThreads; ++t) total += sums[t];
  const bool pass = clamped_alpha(v.deploy ? Rules::kDeploy : Rules::kPeerEager, alpha[segment]).pass;
  gradient[segment] = pass ? total * factor * ref[segment] : 0.0;
}

}  // namespace

void launch_group_amax(Element element, const void* x, int64_t count, int64_t group, float* largest, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((group_amax_kernel<T>), blocks_for(count * kWarp), kThreads, stream, static_cast<const T*>(x), count, group, largest);
  });
}

void launch_vllm_row_c(const WeightView& view, int64_t rows, float* row_c, cudaStream_t stream) {
  SW_LAUNCH(vllm_row_c_kernel, blocks_for(rows * kWarp), kThreads, stream, view, rows, row_c);
}

void launch_fake_quantize_weight(const WeightView& view, Element from, const void* w, Element to, void* out, int64_t rows, cudaStream_t stream) {
  const int64_t chunks_per_group = (view.group + kChunk - 1) / kChunk, chunks = rows * view.groups * chunks_per_group;
  with_element(from, [&](auto from_type) {
    with_element(to, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      SW_LAUNCH((fake_quantize_weight_kernel<From, To>), blocks_for(chunks), kThreads, stream, view, static_cast<const From*>(w), static_cast<To*>(out), chunks,
                chunks_per_group);
    });
  });
}

void launch_weight_alpha_gradient(const WeightView& view, Element from, const void* w, Element gradient, const void* dw, double factor, void* d_alpha,
                                  int64_t first_row, int64_t rows, cudaStream_t stream) {
  with_element(from, [&](auto from_type) {
    with_element(gradient, [&](auto gradient_type) {
      using W = decltype(from_type);
      using D = decltype(gradient_type);
      SW_LAUNCH((weight_alpha_gradient_kernel<W, D>), blocks_for(rows * view.groups * grids::kGradientLanes), kThreads, stream, view,
                static_cast<const W*>(w), static_cast<const D*>(dw), factor, static_cast<Accurate<D>*>(d_alpha), first_row, rows * view.groups);
    });
  });
}

void launch_activation_globals(bool deploy, const float* ref, const float* alpha, int64_t count, float* globals, cudaStream_t stream) {
  SW_LAUNCH(activation_globals_kernel, blocks_for(count), kThreads, stream, deploy, ref, alpha, count, globals);
}

void launch_fake_quantize_activation(const ActivationView& view, Element element, const void* x, void* out, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    const int64_t blocks = view.rows * view.columns / kActivationBlock;
    if (view.two_level)
      SW_LAUNCH((activation_blocks_kernel<T>), blocks_for(blocks), kThreads, stream, view, static_cast<const T*>(x), static_cast<T*>(out), blocks);
    else
      SW_LAUNCH((activation_tokens_kernel<T>), view.rows, kThreads, stream, view, static_cast<const T*>(x), static_cast<T*>(out));
  });
}

void launch_activation_gradient(const ActivationView& view, Element element, const void* x, const void* dy, void* dx, double* terms, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    const int64_t blocks = view.rows * view.columns / kActivationBlock;
    if (view.two_level)
      SW_LAUNCH((block_gradient_kernel<T>), blocks_for(blocks), kThreads, stream, view, static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dx),
                terms, blocks);
    else
      SW_LAUNCH((token_gradient_kernel<T>), view.rows, kThreads, stream, view, static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

void launch_global_gradient(const ActivationView& view, const double* terms, double* by_row, const float* ref, const float* alpha, double factor,
                            double* gradient, cudaStream_t stream) {
  SW_LAUNCH(sum_terms_kernel, blocks_for(view.rows), kThreads, stream, terms, view.rows, view.columns / kActivationBlock, by_row);
  SW_LAUNCH(global_gradient_kernel, view.segments, kThreads, stream, view, by_row, ref, alpha, factor, gradient);
}

}  // namespace scalewright::cuda
