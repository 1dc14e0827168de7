// One element of a norm, of SwiGLU and of a rotation, for host and device; T is an element type, A the type that is computed in.
#pragma once
#include <cmath>

#include "ops/element_math.h"
#include "ops/vector_math.h"

namespace scalewright {

/// 1 / sqrt(mean(x^2) + eps).
template <typename A>
SW_HOST_DEVICE A reciprocal_rms(A squares, A width, A eps) {
  return A{1} / std::sqrt(squares / width + eps);
}

/// x normalized, rounded to T as transformers does before it multiplies by the weight.
template <typename T>
SW_HOST_DEVICE Accurate<T> normalized(T x, Accurate<T> rstd) {
  return load(store<T>(load(x) * rstd));
}

/// sum(dy w x) rstd^2 / width: what the normalization takes out of the gradient along x.
template <typename A>
SW_HOST_DEVICE A gradient_along(A dot, A rstd, A width) {
  return dot * rstd * rstd / width;
}
template <typename T>
SW_HOST_DEVICE T norm_gradient(T dy, T x, T w, Accurate<T> rstd, Accurate<T> along) {
  return store<T>(rstd * (load(dy) * load(w) - load(x) * along));
}

/// silu(gate) * up.
template <typename T>
SW_HOST_DEVICE T swiglu_value(T gate, T up) {
  using A = Accurate<T>;
  const A g = load(gate);
  return store<T>(g / (A{1} + fast_exp(-g)) * load(up));
}

/// With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)), dup = dy gate s.
template <typename T>
SW_HOST_DEVICE void swiglu_gradient(T dy, T gate, T up, T& dgate, T& dup) {
  using A = Accurate<T>;
  const A g = load(gate), d = load(dy), s = A{1} / (A{1} + fast_exp(-g));
  dgate = store<T>(d * load(up) * (s * (A{1} + g * (A{1} - s))));
  dup = store<T>(d * (g * s));
}

/// The pair (a, b) turned by the angle of cos and sin.
template <typename T>
SW_HOST_DEVICE void rotate_pair(T first, T second, Accurate<T> cos, Accurate<T> sin, T& to_first, T& to_second) {
  const Accurate<T> a = load(first), b = load(second);
  to_first = store<T>(a * cos - b * sin);
  to_second = store<T>(b * cos + a * sin);
}

}  // namespace scalewright
