// The element types of the CPU kernels: conversion to and from the accurate type, dispatch over dtypes, and strided
// rows.
#pragma once
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/error.h"

/// Clones of a function for wider vectors, chosen when the program starts. All give the same bits: nothing is
/// contracted.
#define SW_VECTOR_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))

namespace scalewright {

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

inline float load(c10::BFloat16 v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v.x) << 16); }
inline float load(float v) { return v; }
inline double load(double v) { return v; }

template <typename T>
inline T store(Accurate<T> v) {
  return v;
}
/// Round to nearest even; a NaN stays one. Without branches, so that loops of it vectorize.
template <>
inline c10::BFloat16 store<c10::BFloat16>(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t rounded = v != v ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  return c10::BFloat16(static_cast<std::uint16_t>(rounded >> 16), c10::BFloat16::from_bits());
}

/// Calls f(T{}) for the element type of `dtype`. Throws UserError for any but float64, float32 and bfloat16.
template <typename F>
decltype(auto) dispatch_element(at::ScalarType dtype, std::string_view what, F&& f) {
  switch (dtype) {
    case at::kDouble:
      return f(double{});
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(c10::BFloat16{});
    default:
      throw UserError(fmt::format("{}: element type {} is not supported; expected float64, float32 or bfloat16", what,
                                  c10::toString(dtype)));
  }
}

/// A tensor [..., width] as rows, without a copy when at most two leading strides describe it and the last one is 1.
struct Rows {
  at::Tensor tensor;  // keeps the memory alive
  int64_t count = 0, width = 0;
  int64_t inner = 1, outer_stride = 0, inner_stride = 0;

  explicit Rows(const at::Tensor& t) : tensor(t) {
    width = t.size(-1);
    count = 1;
    for (int64_t d = 0; d + 1 < t.dim(); ++d) count *= t.size(d);
    if (t.dim() > 3 || t.stride(-1) != 1) tensor = t.contiguous();
    if (tensor.dim() == 3) {
      inner = std::max<int64_t>(tensor.size(1), 1);
      outer_stride = tensor.stride(0);
      inner_stride = tensor.stride(1);
    } else {
      outer_stride = tensor.dim() == 2 ? tensor.stride(0) : width;
    }
  }
  int64_t offset(int64_t row) const {
    return inner == 1 ? row * outer_stride : (row / inner) * outer_stride + (row % inner) * inner_stride;
  }
  template <typename T>
  const T* row(int64_t r) const {
    return tensor.const_data_ptr<T>() + offset(r);
  }
};

/// Rows that one thread should at least get, for rows of `width` elements.
inline int64_t row_grain(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1)); }

}  // namespace scalewright
