// Per-token loss kernels on the CPU; the formulas are in loss_math.h.
#include "base/error.h"
#include "train/loss_kernel.h"
#include "train/loss_math.h"

namespace scalewright {

namespace {

template <class T>
struct Row {
  const TokenLossOptions* options;
  T* s;         // student logits, then the gradient
  const T* t;   // teacher logits or nullptr
  T *p, *q;     // scratch [V]
  int64_t vocabulary, label;
  TokenLoss* out;
};

/// s = scale * lm_weight * (softmax(s) - onehot).
template <class T>
SW_INLINE void lm_gradient(const Row<T>& row, T max_s, double sum_one) {
  const TokenLossOptions& o = *row.options;
  const T factor = static_cast<T>(o.scale * o.lm_weight / sum_one);
  for (int64_t i = 0; i < row.vocabulary; ++i) row.s[i] = factor * fast_exp(row.s[i] - max_s);
  row.s[row.label] -= static_cast<T>(o.scale * o.lm_weight);
}

/// The whole vocabulary: three or four sweeps over a row that stays in the cache.
template <class T>
SW_INLINE void full_row(const Row<T>& row) {
  const TokenLossOptions& o = *row.options;
  const int64_t n = row.vocabulary;
  T* const s = row.s;
  const T* const t = row.t;
  T* const p = row.p;
  T* const q = row.q;
  FullTerms<T> terms(row_max(s, n), row_max(t, n), o.temperature);
  for (int64_t i = 0; i < n; ++i) p[i] = terms.student(s[i]);
  for (int64_t i = 0; i < n; ++i) q[i] = terms.teacher(t[i]);
  const double sum_s = block_sum<T>(n, [&](int64_t i) { return p[i]; });
  const double sum_t = block_sum<T>(n, [&](int64_t i) { return q[i]; });
  const bool warm = o.temperature != 1;
  const T max_s = terms.max_s, max_t = terms.max_t;
  const double one_s = warm ? block_sum<T>(n, [&](int64_t i) { return fast_exp(s[i] - max_s); }) : sum_s;
  const double one_t = warm ? block_sum<T>(n, [&](int64_t i) { return fast_exp(t[i] - max_t); }) : sum_t;
  terms.set_sums(sum_s, sum_t);
  TokenLoss& out = *row.out;
  out.lm = label_loss(max_s, one_s, s[row.label]);
  out.fkl = block_sum<T>(n, [&](int64_t i) { return terms.forward_term(q[i], terms.gap(s[i], t[i])); });
  out.rkl = -block_sum<T>(n, [&](int64_t i) { return terms.reverse_term(p[i], terms.gap(s[i], t[i])); });
  const double confidence = std::exp(static_cast<double>(t[row.label]) - max_t) / one_t;
  out.cakld = confidence * out.rkl + (1 - confidence) * out.fkl;

  const Mix mix = mix_of(o, confidence);
  double distill = mix.forward * out.fkl + mix.reverse * out.rkl, from_p = 0;
  if (mix.jensen != 0) {
    const T beta = static_cast<T>(o.jsd_beta);
    const double from_q = block_sum<T>(n, [&](int64_t i) {
      const T gap = terms.gap(s[i], t[i]), a = log_over_mixture(gap, beta), term = terms.jensen_teacher_term(q[i], a, gap);
      q[i] = a;
      return term;
    });
    from_p = block_sum<T>(n, [&](int64_t i) { return terms.jensen_student_term(p[i], q[i]); });
    distill = o.jsd_beta * from_q + (1 - o.jsd_beta) * from_p;
  }
  out.loss = weighted_loss(o, out.lm, distill);
  if (!o.gradient) return;

  const FullGradient<T> gradient(o, mix, one_s, out.rkl, from_p);
  if (mix.jensen != 0) {
    for (int64_t i = 0; i < n; ++i) s[i] = gradient.mixture(terms, p[i], q[i]) + (gradient.lm ? gradient.label_part(terms, s[i]) : T(0));
  } else if (gradient.lm) {
    for (int64_t i = 0; i < n; ++i) s[i] = gradient.divergence(terms, p[i], q[i], terms.gap(s[i], t[i])) + gradient.label_part(terms, s[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) s[i] = gradient.divergence(terms, p[i], q[i], terms.gap(s[i], t[i]));
  }
  if (gradient.lm) s[row.label] -= gradient.at_label;
}

/// log(sum exp((x - x_max) / temperature)) + x_max / temperature over all of x[0..n-1]; -inf entries are left out.
template <class T>
SW_INLINE double log_sum(const T* x, int64_t n, double temperature) {
  const T best = row_max(x, n);
  const T inverse = static_cast<T>(1 / temperature);
  return static_cast<double>(best) / temperature + std::log(block_sum<T>(n, [&](int64_t i) { return fast_exp((x[i] - best) * inverse); }));
}

/// The teacher's k most likely tokens in ascending order; among equals at the border the lower ids. `scratch` [n].
template <class T>
std::vector<int64_t> top_tokens(const T* t, int64_t n, int64_t k, T* scratch) {
  std::copy_n(t, n, scratch);
  std::nth_element(scratch, scratch + (k - 1), scratch + n, std::greater<T>());
  const T border = scratch[k - 1];
  int64_t at_border = k - std::count_if(t, t + n, [&](T x) { return x > border; });
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < n; ++i)
    if (t[i] > border || (t[i] == border && at_border-- > 0)) chosen.push_back(i);
  return chosen;
}

/// The teacher's top-k outcomes, with the tail as one more or renormalised.
template <class T>
SW_INLINE void top_k_row(const Row<T>& row) {
  const TokenLossOptions& o = *row.options;
  const int64_t n = row.vocabulary;
  T* const s = row.s;
  const T* const t = row.t;
  TokenLoss& out = *row.out;
  const double lse_s = log_sum(s, n, 1), lse_t = log_sum(t, n, 1);
  out.lm = lse_s - s[row.label];
  const double confidence = std::exp(t[row.label] - lse_t);
  if (!std::isfinite(lse_s) || !std::isfinite(lse_t)) {  // no order among NaN
    out.loss = out.lm = out.fkl = out.rkl = out.cakld = std::nan("");
    return;
  }
  const std::vector<int64_t> chosen = top_tokens(t, n, o.top_k, row.p);
  const int64_t k = o.top_k, outcomes = k + (o.tail ? 1 : 0);
  std::vector<double> lp(outcomes), lq(outcomes), g(outcomes);
  for (int64_t i = 0; i < k; ++i) {
    lp[i] = s[chosen[i]] / o.temperature;
    lq[i] = t[chosen[i]] / o.temperature;
  }
  double tail_s = 0;
  if (o.tail) {
    std::copy_n(s, n, row.p);
    std::copy_n(t, n, row.q);
    for (const int64_t i : chosen) row.p[i] = row.q[i] = -std::numeric_limits<T>::infinity();
    tail_s = lp[k] = log_sum(row.p, n, o.temperature);
    lq[k] = log_sum(row.q, n, o.temperature);
  }
  const double norm_s = log_sum(lp.data(), outcomes, 1), norm_t = log_sum(lq.data(), outcomes, 1);
  for (int64_t i = 0; i < outcomes; ++i) {
    lp[i] -= norm_s;
    lq[i] -= norm_t;
  }
  const Mix mix = mix_of(o, confidence);
  const OutcomeLoss loss = outcome_loss(lp, lq, o.jsd_beta, mix.forward, mix.reverse, mix.jensen, g);
  out.fkl = loss.fkl;
  out.rkl = loss.rkl;
  out.cakld = confidence * loss.rkl + (1 - confidence) * loss.fkl;
  const double distill = mix.forward * loss.fkl + mix.reverse * loss.rkl + mix.jensen * loss.jsd;
  out.loss = weighted_loss(o, out.lm, distill);
  if (!o.gradient) return;

  // An outcome's gradient goes to its token; the tail's is shared in proportion to the tokens' probabilities within the tail.
  const double weight = o.scale * o.distill_weight * o.temperature;
  const T lm_factor = static_cast<T>(o.scale * o.lm_weight), inverse = static_cast<T>(1 / o.temperature);
  const T lse = static_cast<T>(lse_s), tail_lse = static_cast<T>(tail_s), tail_weight = o.tail ? static_cast<T>(weight * g[k]) : T(0);
  for (int64_t i = 0; i < n; ++i) {
    const T lm = lm_factor != 0 ? lm_factor * fast_exp(s[i] - lse) : T(0);
    const T tail = tail_weight != 0 ? tail_weight * fast_exp(row.p[i] * inverse - tail_lse) : T(0);
    s[i] = lm + tail;
  }
  for (int64_t i = 0; i < k; ++i) s[chosen[i]] += static_cast<T>(weight * g[i]);
  s[row.label] -= lm_factor;
}

template <class T>
SW_INLINE void lm_row(const Row<T>& row) {
  const TokenLossOptions& o = *row.options;
  const T max_s = row_max(row.s, row.vocabulary);
  const double sum = block_sum<T>(row.vocabulary, [&](int64_t i) { return fast_exp(row.s[i] - max_s); });
  row.out->lm = label_loss(max_s, sum, row.s[row.label]);
  row.out->loss = o.lm_weight * row.out->lm;
  if (o.gradient) lm_gradient(row, max_s, sum);
}

template <class T>
SW_INLINE int64_t argmax(const T* x, int64_t n) {
  const T best = row_max(x, n);
  for (int64_t i = 0; i < n; ++i)
    if (x[i] == best) return i;
  return -1;
}

template <class T>
SW_INLINE void any_row(const Row<T>& row) {
  if (!row.t) return lm_row(row);
  const bool agree = argmax(row.s, row.vocabulary) == argmax(row.t, row.vocabulary);
  if (row.options->top_k > 0 && row.options->top_k < row.vocabulary) top_k_row(row);
  else full_row(row);
  row.out->top1_agree = agree;
}

// One function an instruction set, chosen when the program starts.
__attribute__((target_clones("default", "avx2", "avx512f"))) void row_float(const Row<float>& row) { any_row(row); }
void row_double(const Row<double>& row) { any_row(row); }

template <class T>
void all_rows(const TokenLossOptions& options, at::Tensor& student, const at::Tensor& teacher, std::span<const int64_t> labels,
              std::span<TokenLoss> out, void (*compute)(const Row<T>&)) {
  const int64_t n = student.size(0), vocabulary = student.size(1);
  T* const s = student.mutable_data_ptr<T>();
  const T* const t = teacher.defined() ? teacher.const_data_ptr<T>() : nullptr;
  const int64_t grain = std::max<int64_t>(1, 32768 / vocabulary);  // a smaller share costs less than waking a thread
  at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    std::vector<T> scratch(t ? 2 * vocabulary : 0);
    for (int64_t i = begin; i < end; ++i) {
      out[i] = TokenLoss();
      compute({&options, s + i * vocabulary, t ? t + i * vocabulary : nullptr, scratch.data(), scratch.data() + vocabulary, vocabulary,
               labels[i], &out[i]});
    }
  });
}

}  // namespace

OutcomeLoss outcome_loss(std::span<const double> log_student, std::span<const double> log_teacher, double jsd_beta, double forward,
                         double reverse, double jensen, std::span<double> gradient) {
  OutcomeLoss sum;
  double mean_a = 0;
  const std::size_t n = log_student.size();
  for (std::size_t i = 0; i < n; ++i) {
    const double p = std::exp(log_student[i]), q = std::exp(log_teacher[i]), d = log_teacher[i] - log_student[i];
    const double a = log_over_mixture(d, jsd_beta);
    sum.fkl += q * d;
    sum.rkl -= p * d;
    sum.jsd += jsd_beta * q * (a + d) + (1 - jsd_beta) * p * a;
    mean_a += p * a;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double p = std::exp(log_student[i]), q = std::exp(log_teacher[i]), d = log_teacher[i] - log_student[i];
    const double a = log_over_mixture(d, jsd_beta);
    gradient[i] = forward * (p - q) - reverse * p * (d + sum.rkl) + jensen * (1 - jsd_beta) * p * (a - mean_a);
  }
  return sum;
}

void token_losses_cpu(const TokenLossOptions& options, at::Tensor& student_TV, const at::Tensor& teacher_TV, std::span<const int64_t> labels,
                      std::span<TokenLoss> out) {
  SW_CHECK(student_TV.is_contiguous() && student_TV.is_cpu(), "logits must be contiguous and on the CPU");
  if (student_TV.scalar_type() == at::kDouble) all_rows<double>(options, student_TV, teacher_TV, labels, out, row_double);
  else all_rows<float>(options, student_TV, teacher_TV, labels, out, row_float);
}

}  // namespace scalewright
