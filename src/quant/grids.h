// The grids as functions of one element, for host and device: value and code of a quotient, the fake-quantized value, and its slope
// with respect to the scale.
#pragma once
#include "quant/format.h"
#include "quant/numeric.h"

namespace scalewright {

/// How quotients become grid values.
enum class Rounding {
  kE2M1Even,        // ties to the even code
  kE2M1TowardZero,  // ties toward zero (AngelSlim's dense linears)
  kInteger,         // ties to even
  kIntegerAway,     // ties away from zero (AngelSlim's Triton int4)
  kE4M3,            // ties to even
};

/// A grid with its range: values lie in [low, high].
struct Rounder {
  Rounding rounding;
  float low, high;
};

namespace grids {

struct E2M1Even {
  SW_HOST_DEVICE float value(float u) const { return numeric::round_e2m1(u); }
  SW_HOST_DEVICE std::uint32_t code(float q, bool negative) const { return numeric::e2m1_code(q, negative); }
};
struct E2M1TowardZero {
  SW_HOST_DEVICE float value(float u) const { return numeric::round_e2m1_toward_zero(u); }
  SW_HOST_DEVICE std::uint32_t code(float q, bool negative) const { return numeric::e2m1_code(q, negative); }
};
struct Integer {
  float low, high;
  SW_HOST_DEVICE float value(float u) const { return numeric::round_integer(u, low, high); }
  SW_HOST_DEVICE std::uint32_t code(float q, bool) const { return static_cast<std::uint32_t>(static_cast<std::int32_t>(q)); }
};
struct IntegerAway {
  float low, high;
  SW_HOST_DEVICE float value(float u) const { return numeric::round_integer_away(u, low, high); }
  SW_HOST_DEVICE std::uint32_t code(float q, bool) const { return static_cast<std::uint32_t>(static_cast<std::int32_t>(q)); }
};
struct E4M3 {
  SW_HOST_DEVICE float value(float u) const { return numeric::round_e4m3(u); }
  SW_HOST_DEVICE std::uint32_t code(float q, bool negative) const { return numeric::e4m3_code(q, negative); }
};

/// x fake-quantized; -0 becomes +0, as its code is 0.
template <class Grid>
SW_HOST_DEVICE float fake_quantized(const Grid& grid, float x, float divide, float multiply) {
  return grid.value(x / divide + 0.0f) * multiply;
}

/// Where the straight-through estimator sees no clipping; u is the quotient. False for NaN.
SW_HOST_DEVICE bool is_in_range(float u, float low, float high) { return (u >= low) & (u <= high); }

/// d(fake-quantized value)/d(scale), straight through the rounding: q - u in range, q where clipped.
template <class Grid>
SW_HOST_DEVICE float scale_slope(const Grid& grid, float x, float divide, float low, float high) {
  const float u = x / divide;
  return grid.value(u) - (is_in_range(u, low, high) ? u : 0.0f);
}

/// Partial sums of a scale's gradient: element i goes to sum i % 8; they are folded as ((0+4)+(1+5)) + ((2+6)+(3+7)).
inline constexpr int kGradientLanes = 8;

}  // namespace grids
}  // namespace scalewright
