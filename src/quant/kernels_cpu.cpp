#include "quant/kernels.h"

#include "quant/numeric.h"

// Run-time choice among clones; -ffp-contract=off keeps their results equal.
#define SW_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#define SW_INLINE inline __attribute__((always_inline))

namespace scalewright {
namespace {

using namespace numeric;
using namespace grids;

/// body(group, element) for all elements; blocks of 16 get a loop of constant length.
template <class Body>
SW_INLINE void each_element(int64_t groups, int64_t group, Body body) {
  if (group == 16) {
    for (int64_t g = 0; g < groups; ++g) {
#pragma GCC ivdep
      for (int64_t i = 0; i < 16; ++i) body(g, g * 16 + i);
    }
    return;
  }
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC ivdep
    for (int64_t i = 0; i < group; ++i) body(g, g * group + i);
  }
}

template <class Grid>
SW_INLINE void values(const Grid& grid, const RowScales& s, const float* x, float* out) {
  each_element(s.groups, s.group, [&](int64_t g, int64_t i) __attribute__((always_inline)) {
    out[i] = fake_quantized(grid, x[i], s.divide[g], s.multiply[g]);
  });
}

/// Codes are made as words and narrowed afterwards: mixed widths in one loop do not vectorize.
template <class Grid>
SW_INLINE void codes_of(const Grid& grid, const RowScales& s, const float* x, std::uint8_t* codes) {
  constexpr int64_t kChunk = 16;
  for (int64_t g = 0; g < s.groups; ++g) {
    const float divide = s.divide[g];
    for (int64_t begin = 0; begin < s.group; begin += kChunk) {
      const float* in = x + g * s.group + begin;
      std::uint8_t* out = codes + g * s.group + begin;
      const int64_t n = s.group - begin < kChunk ? s.group - begin : kChunk;
      float padded[kChunk] = {};
      std::uint32_t words[kChunk];
      for (int64_t i = 0; i < n; ++i) padded[i] = in[i];
      for (int64_t i = 0; i < kChunk; ++i) {
        const float u = padded[i] / divide;
        words[i] = grid.code(grid.value(u), u < 0.0f);
      }
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<std::uint8_t>(words[i]);
    }
  }
}

/// Eight partial sums a group, folded in a fixed tree: the order does not depend on the vector width.
template <class Grid, class D>
SW_INLINE void gradient(const Grid& grid, const RowScales& s, const RowRange& range, const float* x, const D* d, double* sums) {
  constexpr int64_t kLanes = kGradientLanes;
  for (int64_t g = 0; g < s.groups; ++g) {
    const float divide = s.divide[g], low = range.low[g], high = range.high[g];
    const float* xg = x + g * s.group;
    const D* dg = d + g * s.group;
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= s.group; i += kLanes) {
#pragma GCC ivdep
      for (int64_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] += static_cast<double>(dg[i + lane]) * static_cast<double>(scale_slope(grid, xg[i + lane], divide, low, high));
    }
    for (; i < s.group; ++i) lanes[i % kLanes] += static_cast<double>(dg[i]) * static_cast<double>(scale_slope(grid, xg[i], divide, low, high));
    sums[g] = ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
  }
}

// target_clones does not go with templates: one plain function a grid, each an instance of the loops above.
#define SW_GRID_LOOPS(name, Grid, grid)                                                                                                   \
  SW_CLONES void values_##name([[maybe_unused]] const Rounder& r, const RowScales& s, const float* x, float* out) {                      \
    values(Grid grid, s, x, out);                                                                                                         \
  }                                                                                                                                       \
  SW_CLONES void codes_##name([[maybe_unused]] const Rounder& r, const RowScales& s, const float* x, std::uint8_t* out) {                \
    codes_of(Grid grid, s, x, out);                                                                                                       \
  }                                                                                                                                       \
  SW_CLONES void gradient_##name([[maybe_unused]] const Rounder& r, const RowScales& s, const RowRange& range, const float* x,           \
                                 const double* d, double* sums) {                                                                         \
    gradient(Grid grid, s, range, x, d, sums);                                                                                            \
  }                                                                                                                                       \
  SW_CLONES void gradient32_##name([[maybe_unused]] const Rounder& r, const RowScales& s, const RowRange& range, const float* x,         \
                                   const float* d, double* sums) {                                                                        \
    gradient(Grid grid, s, range, x, d, sums);                                                                                            \
  }
SW_GRID_LOOPS(e2m1_even, E2M1Even, {})
SW_GRID_LOOPS(e2m1_toward_zero, E2M1TowardZero, {})
SW_GRID_LOOPS(integer, Integer, ({r.low, r.high}))
SW_GRID_LOOPS(integer_away, IntegerAway, ({r.low, r.high}))
SW_GRID_LOOPS(e4m3, E4M3, {})
#undef SW_GRID_LOOPS

}  // namespace

#define SW_DISPATCH(function, rounder, ...)                                                \
  switch ((rounder).rounding) {                                                            \
    case Rounding::kE2M1Even: return function##_e2m1_even(rounder, __VA_ARGS__);           \
    case Rounding::kE2M1TowardZero: return function##_e2m1_toward_zero(rounder, __VA_ARGS__); \
    case Rounding::kInteger: return function##_integer(rounder, __VA_ARGS__);              \
    case Rounding::kIntegerAway: return function##_integer_away(rounder, __VA_ARGS__);     \
    case Rounding::kE4M3: return function##_e4m3(rounder, __VA_ARGS__);                    \
  }

void fake_quantize_row(const Rounder& rounder, const RowScales& scales, const float* x, float* out) {
  SW_DISPATCH(values, rounder, scales, x, out)
}

void code_row(const Rounder& rounder, const RowScales& scales, const float* x, std::uint8_t* codes) {
  SW_DISPATCH(codes, rounder, scales, x, codes)
}

void scale_gradient_row(const Rounder& rounder, const RowScales& scales, const RowRange& range, const float* x, const double* d,
                        double* sums) {
  SW_DISPATCH(gradient, rounder, scales, range, x, d, sums)
}

void scale_gradient_row(const Rounder& rounder, const RowScales& scales, const RowRange& range, const float* x, const float* d,
                        double* sums) {
  SW_DISPATCH(gradient32, rounder, scales, range, x, d, sums)
}

/// The bits of magnitudes are ordered as the magnitudes are, with NaN above all: an integer maximum, which vectorizes.
SW_CLONES void group_amax_row(const float* x, int64_t groups, int64_t group, float* amax) {
  for (int64_t g = 0; g < groups; ++g) {
    std::int32_t largest = 0;
    for (int64_t i = 0; i < group; ++i) {
      const auto bits = static_cast<std::int32_t>(bits_of(x[g * group + i]) & 0x7fffffffu);
      largest = bits > largest ? bits : largest;
    }
    amax[g] = float_of(static_cast<std::uint32_t>(largest));
  }
}

SW_CLONES static void dequantize_e2m1(const RowScales& s, const std::uint8_t* codes, float* out) {
  each_element(s.groups, s.group, [&](int64_t g, int64_t i) __attribute__((always_inline)) { out[i] = e2m1_value(codes[i]) * s.multiply[g]; });
}
SW_CLONES static void dequantize_e4m3(const RowScales& s, const std::uint8_t* codes, float* out) {
  each_element(s.groups, s.group, [&](int64_t g, int64_t i) __attribute__((always_inline)) { out[i] = e4m3_value(codes[i]) * s.multiply[g]; });
}
SW_CLONES static void dequantize_integer(const RowScales& s, const std::uint8_t* codes, float* out) {
  each_element(s.groups, s.group, [&](int64_t g, int64_t i) __attribute__((always_inline)) {
    out[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * s.multiply[g];
  });
}

void dequantize_row(Grid grid, const RowScales& scales, const std::uint8_t* codes, float* out) {
  switch (grid) {
    case Grid::kE2M1: return dequantize_e2m1(scales, codes, out);
    case Grid::kE4M3: return dequantize_e4m3(scales, codes, out);
    case Grid::kInt4:
    case Grid::kInt8: return dequantize_integer(scales, codes, out);
  }
}

SW_CLONES void in_range_row(const RowScales& s, const RowRange& range, const float* x, bool* in_range) {
  each_element(s.groups, s.group, [&](int64_t g, int64_t i) __attribute__((always_inline)) {
    in_range[i] = is_in_range(x[i] / s.divide[g], range.low[g], range.high[g]);
  });
}

}  // namespace scalewright
