// Reductions and functions of the loss kernels, written so that the compiler vectorizes them and every instruction set gives the same bits.
#pragma once
#include <cmath>
#include <cstdint>

#include "ops/vector_math.h"

namespace scalewright {

#define SW_INLINE inline __attribute__((always_inline))

/// sum of f(0..n-1) in a fixed order: lanes of T over blocks of 1024, blocks in float64.
template <class T, class F>
SW_INLINE double block_sum(int64_t n, F f) {
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    T lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += f(i + l);
    double sum = 0;
    for (int64_t l = 0; l < kLanes; ++l) sum += lanes[l];
    for (; i < end; ++i) sum += f(i);
    total += sum;
  }
  return total;
}

/// The largest of x[0..n-1], ignoring NaN (a later exp brings it back).
template <class T>
SW_INLINE T row_max(const T* x, int64_t n) {
  T lanes[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) lanes[l] = x[0];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  T best = lanes[0];
  for (int64_t l = 1; l < kLanes; ++l) best = lanes[l] > best ? lanes[l] : best;
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

/// log(p/m) of the mixture m = beta*q + (1-beta)*p, from d = log q - log p: exactly 0 at d = 0, finite for every finite d.
template <class T>
SW_INLINE T log_over_mixture(T d, T beta) {
  return d <= 0 ? -std::log1p(beta * std::expm1(d)) : -d - std::log1p((1 - beta) * std::expm1(-d));
}

}  // namespace scalewright
