// Reductions and functions of the loss kernels, written so that the compiler vectorizes them and every instruction set gives the same bits.
// Formulas, with p = softmax(s/T), q = softmax(t/T), d = log q - log p, g = d(loss)/d(s/T):
//   fkl = sum q d               g = p - q
//   rkl = -sum p d              g = -p (d + rkl)
//   cakld = c rkl + (1-c) fkl   c = softmax(t)[label], a constant
//   jsd = beta KL(q|m) + (1-beta) KL(p|m), m = beta q + (1-beta) p:  g = p (a - sum p a), a = (1-beta) log(p/m);
//         beta 0 and 1 are the limits fkl and rkl (Agarwal et al., "On-policy distillation of language models", 2024)
// d is (t-s)/T minus the difference of the two log-sums, taken in float64: accurate when p and q are close, exactly 0 when equal.
#pragma once
#include <cmath>
#include <cstdint>

#include "ops/vector_math.h"
#include "train/token_loss.h"

namespace scalewright {

#define SW_INLINE inline __attribute__((always_inline))

inline constexpr int64_t kSumBlock = 1024;

/// sum of f(0..n-1) in a fixed order: lanes of T over blocks of 1024, blocks in float64.
template <class T, class F>
SW_INLINE double block_sum(int64_t n, F f) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
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
SW_HOST_DEVICE T log_over_mixture(T d, T beta) {
  return d <= 0 ? -std::log1p(beta * std::expm1(d)) : -d - std::log1p((1 - beta) * std::expm1(-d));
}

/// How much of each divergence the loss holds.
struct Mix {
  double forward = 0, reverse = 0, jensen = 0;
};

SW_HOST_DEVICE Mix mix_of(const TokenLossOptions& o, double confidence) {
  if (o.type == DistillType::kForwardKl) return {1, 0, 0};
  if (o.type == DistillType::kReverseKl) return {0, 1, 0};
  if (o.type == DistillType::kCakld) return {1 - confidence, confidence, 0};
  if (o.jsd_beta <= 0) return {1, 0, 0};
  if (o.jsd_beta >= 1) return {0, 1, 0};
  return {0, 0, 1};
}

/// lm_weight*lm + distill_weight*temperature^2*distill.
SW_HOST_DEVICE double weighted_loss(const TokenLossOptions& o, double lm, double distill) {
  return o.lm_weight * lm + o.distill_weight * o.temperature * o.temperature * distill;
}

/// -log softmax(s)[label] from the largest logit and sum exp(s - max_s).
template <class T>
SW_HOST_DEVICE double label_loss(T max_s, double sum_one, T at_label) {
  return std::log(sum_one) + (static_cast<double>(max_s) - at_label);
}

/// The full-vocabulary loss, element by element, once the maxima and the sums of exponentials are known. s, t: logits; p, q: the
/// exponentials student(s), teacher(t), not yet divided by their sums.
template <class T>
struct FullTerms {
  T max_s, max_t, inverse;           // inverse: 1 / temperature
  T shift = 0, over_s = 0, over_t = 0;

  SW_HOST_DEVICE FullTerms(T largest_s, T largest_t, double temperature) : max_s(largest_s), max_t(largest_t), inverse(static_cast<T>(1 / temperature)) {}
  SW_HOST_DEVICE void set_sums(double sum_s, double sum_t) {
    shift = static_cast<T>((static_cast<double>(max_t) - max_s) * inverse + (std::log(sum_t) - std::log(sum_s)));
    over_s = static_cast<T>(1 / sum_s);
    over_t = static_cast<T>(1 / sum_t);
  }
  SW_HOST_DEVICE T student(T s) const { return fast_exp((s - max_s) * inverse); }
  SW_HOST_DEVICE T teacher(T t) const { return fast_exp((t - max_t) * inverse); }
  SW_HOST_DEVICE T gap(T s, T t) const { return (t - s) * inverse - shift; }
  SW_HOST_DEVICE T forward_term(T q, T d) const { return q * over_t * d; }
  SW_HOST_DEVICE T reverse_term(T p, T d) const { return p * over_s * d; }   // negated
  /// a = log_over_mixture(d).
  SW_HOST_DEVICE T jensen_teacher_term(T q, T a, T d) const { return q * over_t * (a + d); }
  SW_HOST_DEVICE T jensen_student_term(T p, T a) const { return p * over_s * a; }
};

/// Its gradient: d(loss)/d(s) = temperature * g, temperature^2 of the loss times 1/temperature of the inner derivative.
template <class T>
struct FullGradient {
  bool lm;
  T lm_factor, at_label;          // softmax(s) gets lm_factor, the label loses at_label
  T forward, reverse, rkl;        // without a jensen part
  T jensen, mean_a;

  SW_HOST_DEVICE FullGradient(const TokenLossOptions& o, const Mix& mix, double one_s, double reverse_kl, double mean)
      : lm(o.lm_weight != 0), lm_factor(static_cast<T>(o.scale * o.lm_weight / one_s)), at_label(static_cast<T>(o.scale * o.lm_weight)) {
    const double weight = o.scale * o.distill_weight * o.temperature;
    forward = static_cast<T>(weight * mix.forward);
    reverse = static_cast<T>(weight * mix.reverse);
    rkl = static_cast<T>(reverse_kl);
    jensen = static_cast<T>(weight * (1 - o.jsd_beta));
    mean_a = static_cast<T>(mean);
  }
  SW_HOST_DEVICE T label_part(const FullTerms<T>& terms, T s) const { return lm_factor * fast_exp(s - terms.max_s); }
  SW_HOST_DEVICE T divergence(const FullTerms<T>& terms, T p, T q, T d) const {
    const T slope = forward - reverse * (d + rkl);
    return p * terms.over_s * slope - q * terms.over_t * forward;
  }
  SW_HOST_DEVICE T mixture(const FullTerms<T>& terms, T p, T a) const { return p * terms.over_s * jensen * (a - mean_a); }
};

}  // namespace scalewright
