#include "quant/kernels.h"

#include "quant/numeric.h"

// Run-time choice among clones; -ffp-contract=off keeps their results equal.
#define SW_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#define SW_INLINE inline __attribute__((always_inline))

namespace scalewright {
namespace {

using namespace numeric;

struct E2M1Even {
  SW_INLINE float value(float u) const { return round_e2m1(u); }
  SW_INLINE std::uint32_t code(float q, bool negative) const { return e2m1_code(q, negative); }
};
struct E2M1TowardZero {
  SW_INLINE float value(float u) const { return round_e2m1_toward_zero(u); }
  SW_INLINE std::uint32_t code(float q, bool negative) const { return e2m1_code(q, negative); }
};
struct Integer {
  float low, high;
  SW_INLINE float value(float u) const { return round_integer(u, low, high); }
  SW_INLINE std::uint32_t code(float q, bool) const { return static_cast<std::uint32_t>(static_cast<std::int32_t>(q)); }
};
struct IntegerAway {
  float low, high;
  SW_INLINE float value(float u) const { return round_integer_away(u, low, high); }
  SW_INLINE std::uint32_t code(float q, bool) const { return static_cast<std::uint32_t>(static_cast<std::int32_t>(q)); }
};
struct E4M3 {
  SW_INLINE float value(float u) const { return round_e4m3(u); }
  SW_INLINE std::uint32_t code(float q, bool negative) const { return e4m3_code(q, negative); }
};

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
    out[i] = grid.value(x[i] / s.divide[g] + 0.0f) * s.multiply[g];   // -0 becomes +0, as its code is 0
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
  constexpr int64_t kLanes = 8;
  for (int64_t g = 0; g < s.groups; ++g) {
    const float divide = s.divide[g], low = range.low[g], high = range.high[g];
    const float* xg = x + g * s.group;
    const D* dg = d + g * s.group;
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= s.group; i += kLanes) {
#pragma GCC ivdep
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float u = xg[i + lane] / divide;
        const float q = grid.value(u);
        const float inside = (u >= low) & (u <= high) ? u : 0.0f;
        lanes[lane] += static_cast<double>(dg[i + lane]) * static_cast<double>(q - inside);
      }
    }
    for (; i < s.group; ++i) {
      const float u = xg[i] / divide;
      const float inside = (u >= low) & (u <= high) ? u : 0.0f;
      lanes[i % kLanes] += static_cast<double>(dg[i]) * static_cast<double>(grid.value(u) - inside);
    }
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
    const float u = x[i] / s.divide[g];
    in_range[i] = (u >= range.low[g]) & (u <= range.high[g]);
  });
}

}  // namespace scalewright
