// exp in plain arithmetic, so that loops of it vectorize and give the same bits on every CPU.
#pragma once
#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace scalewright {

/// e^x within 2 units of the last place. Below -87.3 exactly 0; above 88.37 clamped to e^88.37; NaN stays NaN.
/// x = n ln2 + r with |r| <= ln2/2 (ln2 in two parts, Cody and Waite), then the Taylor polynomial to r^7.
SW_HOST_DEVICE float fast_exp(float x) {
  const float top = x > 88.37f ? 88.37f : x;
  const float shifted = top * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the rounded n lies in the low bits
  const float n = shifted - 12582912.0f;
  const float r = (top - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const auto power = (std::bit_cast<std::int32_t>(shifted) - 0x4b400000 + 127) << 23;
  const float y = p * std::bit_cast<float>(power);
  return x < -87.3f ? 0.0f : y;
}

/// As above in double: 0 below -708, clamped above 709.4, Taylor polynomial to r^13.
SW_HOST_DEVICE double fast_exp(double x) {
  const double top = x > 709.4 ? 709.4 : x;
  const double shifted = top * 1.4426950408889634 + 6755399441055744.0;  // 1.5 * 2^52
  const double n = shifted - 6755399441055744.0;
  const double r = (top - n * 0.693145751953125) - n * 1.42860682030941723212e-6;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1.0;
  const auto power = (std::bit_cast<std::int64_t>(shifted) - 0x4338000000000000 + 1023) << 52;
  const double y = p * std::bit_cast<double>(power);
  return x < -708.0 ? 0.0 : y;
}

/// Lanes of a reduction: partial sums by index modulo kLanes, then added in order. Fixed, so that every vector width
/// agrees.
inline constexpr int kLanes = 16;

template <typename A>
inline A sum_lanes(const A (&lanes)[kLanes]) {
  A width8[8], width4[4];
  for (int i = 0; i < 8; ++i) width8[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) width4[i] = width8[i] + width8[i + 4];
  return (width4[0] + width4[2]) + (width4[1] + width4[3]);
}

/// The largest of the lanes.
template <int kCount, typename A>
inline A max_lanes(A (&lanes)[kCount]) {
  for (int half = kCount / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
  return lanes[0];
}

/// Sum over i < n of term(i), in lanes.
template <typename A, typename F>
inline A lane_sum(int64_t n, F&& term) {
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
  for (int j = 0; i < n; ++i, ++j) lanes[j] += term(i);
  return sum_lanes(lanes);
}

}  // namespace scalewright
