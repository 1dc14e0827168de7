// Element types for host and device without torch: conversion to and from the type that is computed in.
#pragma once
#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace scalewright {

/// A bfloat16 as its bits; c10::BFloat16 has the same layout.
struct Bf16 {
  std::uint16_t bits;
};

template <typename T>
struct AccurateOf {
  using type = float;
};
template <>
struct AccurateOf<double> {
  using type = double;
};
/// float for bfloat16 and float, double for double.
template <typename T>
using Accurate = typename AccurateOf<T>::type;

SW_HOST_DEVICE float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
/// Round to nearest even; a NaN stays one. Without branches, so that loops of it vectorize.
SW_HOST_DEVICE std::uint16_t float_to_bf16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t rounded = v != v ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>(rounded >> 16);
}

SW_HOST_DEVICE float load(Bf16 v) { return bf16_to_float(v.bits); }
SW_HOST_DEVICE float load(float v) { return v; }
SW_HOST_DEVICE double load(double v) { return v; }

template <typename T>
struct StoreAs {
  static SW_HOST_DEVICE T of(Accurate<T> v) { return v; }
};
template <>
struct StoreAs<Bf16> {
  static SW_HOST_DEVICE Bf16 of(float v) { return {float_to_bf16(v)}; }
};
template <typename T>
SW_HOST_DEVICE T store(Accurate<T> v) {
  return StoreAs<T>::of(v);
}

}  // namespace scalewright
