// AdamW's update of one element, for host and device.
#pragma once
#include <cmath>

#include "base/host_device.h"

namespace scalewright {

/// With g' = factor g: p *= decay; m = beta1 m + (1-beta1) g'; v = beta2 v + (1-beta2) g'^2; p -= rate m / (sqrt(v) root + eps).
struct AdamWUpdate {
  double factor, decay, beta1, beta2, rate, root, eps;   // root: 1/sqrt(1-beta2^t); rate: lr/(1-beta1^t)
};

/// The same in the type that is computed in.
template <class T>
struct AdamWElement {
  T factor, decay, beta1, beta2, rate, root, eps, rest1, rest2;

  SW_HOST_DEVICE explicit AdamWElement(const AdamWUpdate& u)
      : factor(static_cast<T>(u.factor)), decay(static_cast<T>(u.decay)), beta1(static_cast<T>(u.beta1)), beta2(static_cast<T>(u.beta2)),
        rate(static_cast<T>(u.rate)), root(static_cast<T>(u.root)), eps(static_cast<T>(u.eps)), rest1(static_cast<T>(1 - u.beta1)),
        rest2(static_cast<T>(1 - u.beta2)) {}

  SW_HOST_DEVICE void operator()(T& p, T g, T& m, T& v) const {
    const T gradient = g * factor;
    m = m * beta1 + gradient * rest1;
    v = v * beta2 + gradient * gradient * rest2;
    p = p * decay - rate * (m / (std::sqrt(v) * root + eps));
  }
};

}  // namespace scalewright
