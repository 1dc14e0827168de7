// The element types of the CPU kernels: conversion to and from the accurate type, dispatch over dtypes, and strided
// rows.
#pragma once
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "ops/element_math.h"

/// Clones of a function for wider vectors, chosen when the program starts. All give the same bits: nothing is
/// contracted.
#define SW_VECTOR_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))

namespace scalewright {

SW_HOST_DEVICE float load(c10::BFloat16 v) { return bf16_to_float(v.x); }
template <>
struct StoreAs<c10::BFloat16> {
  static SW_HOST_DEVICE c10::BFloat16 of(float v) { return c10::BFloat16(float_to_bf16(v), c10::BFloat16::from_bits()); }
};

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
