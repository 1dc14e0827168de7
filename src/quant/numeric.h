// The arithmetic of one element, for host and device: rounding to each grid, codes, bfloat16. Branch-free, so that compilers
// vectorize loops over it; adds and compares only, so that every target gives the same bits.
#pragma once
#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace scalewright::numeric {

inline constexpr float kE2M1Max = 6.0f;
inline constexpr float kE4M3Max = 448.0f;
inline constexpr float kE4M3Least = 0x1p-9f;          // the smallest positive E4M3 value
inline constexpr float kRoundToInteger = 0x1.8p23f;   // adding and subtracting it rounds |x| < 2^22 to an integer, ties to even

SW_HOST_DEVICE std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
SW_HOST_DEVICE float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
SW_HOST_DEVICE float magnitude(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
/// `a` (not negative) with the sign of `x`.
SW_HOST_DEVICE float with_sign(float a, float x) { return float_of(bits_of(a) | (bits_of(x) & 0x80000000u)); }
/// NaN stays NaN.
SW_HOST_DEVICE float clamp(float x, float low, float high) {
  x = x > high ? high : x;
  return x < low ? low : x;
}

/// Integer in [low, high], ties to even.
SW_HOST_DEVICE float round_integer(float x, float low, float high) {
  const float c = clamp(x, low, high);
  return (c + kRoundToInteger) - kRoundToInteger;
}

/// Integer in [low, high], ties away from zero, computed as floor(x + .5) is: x + .5 is rounded first (AngelSlim's Triton kernel).
SW_HOST_DEVICE float round_integer_away(float x, float low, float high) {
  const float a = magnitude(clamp(x, low, high)) + 0.5f;
  const float r = (a + kRoundToInteger) - kRoundToInteger;
  return with_sign(r > a ? r - 1.0f : r, x);
}

/// E2M1 value (0 .5 1 1.5 2 3 4 6 and their negatives), ties to even index, saturating.
SW_HOST_DEVICE float round_e2m1(float x) {
  const float a = clamp(magnitude(x), 0.0f, kE2M1Max);
  const float magic = a < 2.0f ? kRoundToInteger * 0.5f : (a < 4.0f ? kRoundToInteger : kRoundToInteger * 2.0f);
  return with_sign((a + magic) - magic, x);
}

/// E2M1 value, ties toward zero (AngelSlim's eager rule), saturating.
SW_HOST_DEVICE float round_e2m1_toward_zero(float x) {
  const float a = magnitude(x);
  const float halves = (a > 0.25f ? 0.5f : 0.0f) + (a > 0.75f ? 0.5f : 0.0f) + (a > 1.25f ? 0.5f : 0.0f) + (a > 1.75f ? 0.5f : 0.0f);
  const float ones = (a > 2.5f ? 1.0f : 0.0f) + (a > 3.5f ? 1.0f : 0.0f) + (a > 5.0f ? 2.0f : 0.0f);
  return with_sign(a == a ? halves + ones : a, x);
}

/// E4M3 value (8-bit float without infinities, largest 448), ties to even, saturating; equals a cast to float8_e4m3fn and back.
SW_HOST_DEVICE float round_e4m3(float x) {
  const float a = clamp(magnitude(x), 0.0f, kE4M3Max);
  // 1.5 * 2^23 units in the last place of a: 2^(e-3), and 2^-9 below the smallest normal 2^-6.
  const std::uint32_t exponent = bits_of(a) & 0x7f800000u;
  const std::uint32_t least = std::uint32_t{127 - 6} << 23;
  const float magic = float_of(((exponent > least ? exponent : least) + (std::uint32_t{20} << 23)) | 0x400000u);
  return with_sign((a + magic) - magic, x);
}

/// std::max without its reference: `a` unless it is less than `b`, so a NaN in `a` stays.
SW_HOST_DEVICE float larger(float a, float b) { return a < b ? b : a; }

/// bfloat16 nearest to a finite x, ties to even. (Do not make the mask conditional: GCC 12.2 then drops it.)
SW_HOST_DEVICE float round_bf16(float x) {
  const std::uint32_t b = bits_of(x);
  return float_of((b + 0x7fffu + ((b >> 16) & 1u)) & 0xffff0000u);
}

/// float16 nearest to x, ties to even, for |x| <= 65504; NaN stays NaN.
SW_HOST_DEVICE float round_half(float x) {
  const float a = magnitude(x);
  // As in round_e4m3: 1.5 * 2^23 units in the last place, 2^(e-10), and 2^-24 below the smallest normal 2^-14.
  const std::uint32_t exponent = bits_of(a) & 0x7f800000u;
  const std::uint32_t least = std::uint32_t{127 - 14} << 23;
  const float magic = float_of(((exponent > least ? exponent : least) + (std::uint32_t{13} << 23)) | 0x400000u);
  return with_sign((a + magic) - magic, x);
}

/// Code (sign << 3 | index) of an E2M1 value; `negative` gives the sign, as a rounded value may be zero.
SW_HOST_DEVICE std::uint32_t e2m1_code(float value, bool negative) {
  const std::uint32_t b = bits_of(value) & 0x7fffffffu;
  const std::uint32_t index = b >= 0x3f800000u ? (b >> 22) - 252u : (b != 0u ? 1u : 0u);
  return index | (negative ? 8u : 0u);
}

SW_HOST_DEVICE float e2m1_value(std::uint32_t code) {
  const std::uint32_t index = code & 7u;
  const float a = index >= 2u ? float_of((index + 252u) << 22) : (index == 1u ? 0.5f : 0.0f);
  return float_of(bits_of(a) | ((code & 8u) << 28));
}

/// Byte of an E4M3 value; NaN is 0x7f.
SW_HOST_DEVICE std::uint32_t e4m3_code(float value, bool negative) {
  const float a = magnitude(value);
  const std::uint32_t b = bits_of(a);
  const std::uint32_t normal = (b >> 20) - (std::uint32_t{127 - 7} << 3);
  const std::uint32_t denormal = bits_of(a + 0x1p14f) & 0xfu;  // 2^-9 is one unit in the last place of 2^14
  const std::uint32_t code = b >= (std::uint32_t{127 - 6} << 23) ? normal : denormal;
  return (a == a ? code : 0x7fu) | (negative ? 0x80u : 0u);
}

SW_HOST_DEVICE float e4m3_value(std::uint32_t code) {
  const std::uint32_t low = code & 0x7fu;
  const float normal = float_of((low << 20) + (std::uint32_t{127 - 7} << 23));
  const float denormal = float_of((low & 7u) | bits_of(0x1p14f)) - 0x1p14f;
  const float a = low == 0x7fu ? float_of(0x7fc00000u) : (low >= 8u ? normal : denormal);
  return float_of(bits_of(a) | ((code & 0x80u) << 24));
}

}  // namespace scalewright::numeric
