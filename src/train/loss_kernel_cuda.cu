#include "train/loss_kernel_cuda.h"

#include "ops/cuda_launch.h"
#include "train/loss_math.h"

namespace scalewright::cuda {
namespace {

constexpr int kRowThreads = 512;                       // a block of threads a token
constexpr int kSumsAtOnce = kRowThreads / kLanes;      // blocks of 1024 elements that are added up at a time
constexpr int64_t kNoIndex = 0x7fffffffffffffff;

/// Storage that the threads of a block share.
template <class T>
struct Shared {
  T values[kRowThreads];
  int64_t indices[kRowThreads];
  double sums[2][kSumsAtOnce];
};

/// row_max of the CPU: the largest, ignoring NaN but for x[0].
template <class T>
__device__ T block_row_max(const T* x, int64_t n, Shared<T>& shared) {
  T best = x[0];
  for (int64_t i = threadIdx.x; i < n; i += kRowThreads) best = x[i] > best ? x[i] : best;
  __syncthreads();
  shared.values[threadIdx.x] = best;
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) {
      const T other = shared.values[threadIdx.x + half];
      if (other > shared.values[threadIdx.x]) shared.values[threadIdx.x] = other;
    }
  }
  __syncthreads();
  return shared.values[0];
}

/// The first i with x[i] == value; -1: none (a NaN).
template <class T>
__device__ int64_t block_first(const T* x, int64_t n, T value, Shared<T>& shared) {
  int64_t first = kNoIndex;
  for (int64_t i = threadIdx.x; i < n && first == kNoIndex; i += kRowThreads)
    if (x[i] == value) first = i;
  __syncthreads();
  shared.indices[threadIdx.x] = first;
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half && shared.indices[threadIdx.x + half] < shared.indices[threadIdx.x])
      shared.indices[threadIdx.x] = shared.indices[threadIdx.x + half];
  }
  __syncthreads();
  return shared.indices[0] == kNoIndex ? -1 : shared.indices[0];
}

/// kCount sums at once, each as block_sum of the CPU in its order: 16 lanes of T over each 1024 elements, their sum and the remainder in
/// double, then the blocks one after the other. terms(i, values) gives the i-th terms; sixteen threads have a block; every thread gets the sums.
template <int kCount, class T, class Terms>
__device__ void block_row_sums(int64_t n, Shared<T>& shared, double (&totals)[kCount], Terms terms) {
  const int lane = static_cast<int>(threadIdx.x % kLanes), part = static_cast<int>(threadIdx.x / kLanes);
  const int first_lane = static_cast<int>(threadIdx.x % kWarp) - lane;
  for (double& total : totals) total = 0;
  for (int64_t round = 0; round < n; round += kSumsAtOnce * kSumBlock) {
    const int64_t begin = round + part * kSumBlock;
    int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
    if (end < begin) end = begin;
    const int64_t whole = begin + (end - begin) / kLanes * kLanes;
    T sums[kCount] = {}, rest[kCount] = {}, values[kCount];
    for (int64_t i = begin + lane; i < whole; i += kLanes) {
      terms(i, values);
      for (int c = 0; c < kCount; ++c) sums[c] += values[c];
    }
    if (whole + lane < end) terms(whole + lane, rest);
    __syncthreads();   // the sums of the round before have been read
    for (int c = 0; c < kCount; ++c) {
      double block = 0;
      for (int l = 0; l < kLanes; ++l) block += static_cast<double>(__shfl_sync(kWholeWarp, sums[c], first_lane + l));
      for (int l = 0; l < kLanes; ++l) {
        const T other = __shfl_sync(kWholeWarp, rest[c], first_lane + l);
        if (whole + l < end) block += static_cast<double>(other);
      }
      if (lane == 0) shared.sums[c][part] = block;
    }
    __syncthreads();
    for (int b = 0; b < kSumsAtOnce && round + b * kSumBlock < n; ++b)
      for (int c = 0; c < kCount; ++c) totals[c] += shared.sums[c][b];
  }
}

template <class T>
__device__ void lm_row(const TokenLossOptions& o, T* s, int64_t n, int64_t label, TokenLoss* out, Shared<T>& shared) {
  const T max_s = block_row_max(s, n, shared);
  double sums[1];
  block_row_sums(n, shared, sums, [&](int64_t i, T* values) { values[0] = fast_exp(s[i] - max_s); });
  const double sum = sums[0];
  if (threadIdx.x == 0) {
    TokenLoss loss;
    loss.lm = label_loss(max_s, sum, s[label]);
    loss.loss = o.lm_weight * loss.lm;
    *out = loss;
  }
  if (!o.gradient) return;
  __syncthreads();   // s[label] has been read
  const T factor = static_cast<T>(o.scale * o.lm_weight / sum), at_label = static_cast<T>(o.scale * o.lm_weight);
  for (int64_t i = threadIdx.x; i < n; i += kRowThreads) {
    const T value = factor * fast_exp(s[i] - max_s);
    s[i] = i == label ? value - at_label : value;
  }
}

template <class T>
__device__ void full_row(const TokenLossOptions& o, T* s, const T* t, int64_t n, int64_t label, TokenLoss* out, Shared<T>& shared) {
  const T max_s = block_row_max(s, n, shared), max_t = block_row_max(t, n, shared);
  TokenLoss loss;
  loss.top1_agree = block_first(s, n, max_s, shared) == block_first(t, n, max_t, shared);
  FullTerms<T> terms(max_s, max_t, o.temperature);
  double sums[2], at_one[2], divergences[2];
  block_row_sums(n, shared, sums, [&](int64_t i, T* values) {
    values[0] = terms.student(s[i]);
    values[1] = terms.teacher(t[i]);
  });
  at_one[0] = sums[0];
  at_one[1] = sums[1];
  if (o.temperature != 1)
    block_row_sums(n, shared, at_one, [&](int64_t i, T* values) {
      values[0] = fast_exp(s[i] - max_s);
      values[1] = fast_exp(t[i] - max_t);
    });
  const double one_s = at_one[0], one_t = at_one[1];
  terms.set_sums(sums[0], sums[1]);
  block_row_sums(n, shared, divergences, [&](int64_t i, T* values) {
    const T gap = terms.gap(s[i], t[i]);
    values[0] = terms.forward_term(terms.teacher(t[i]), gap);
    values[1] = terms.reverse_term(terms.student(s[i]), gap);
  });
  loss.lm = label_loss(max_s, one_s, s[label]);
  loss.fkl = divergences[0];
  loss.rkl = -divergences[1];
  const double confidence = std::exp(static_cast<double>(t[label]) - max_t) / one_t;
  loss.cakld = confidence * loss.rkl + (1 - confidence) * loss.fkl;

  const Mix mix = mix_of(o, confidence);
  double distill = mix.forward * loss.fkl + mix.reverse * loss.rkl, from_p = 0;
  const T beta = static_cast<T>(o.jsd_beta);
  if (mix.jensen != 0) {
    double jensen[2];
    block_row_sums(n, shared, jensen, [&](int64_t i, T* values) {
      const T gap = terms.gap(s[i], t[i]), a = log_over_mixture(gap, beta);
      values[0] = terms.jensen_teacher_term(terms.teacher(t[i]), a, gap);
      values[1] = terms.jensen_student_term(terms.student(s[i]), a);
    });
    from_p = jensen[1];
    distill = o.jsd_beta * jensen[0] + (1 - o.jsd_beta) * from_p;
  }
  loss.loss = weighted_loss(o, loss.lm, distill);
  if (threadIdx.x == 0) *out = loss;
  if (!o.gradient) return;

  __syncthreads();   // s[label] has been read by all
  const FullGradient<T> gradient(o, mix, one_s, loss.rkl, from_p);
  for (int64_t i = threadIdx.x; i < n; i += kRowThreads) {
    const T gap = terms.gap(s[i], t[i]), p = terms.student(s[i]), part = gradient.lm ? gradient.label_part(terms, s[i]) : T(0);
    T value;
    if (mix.jensen != 0) value = gradient.mixture(terms, p, log_over_mixture(gap, beta)) + part;
    else value = gradient.divergence(terms, p, terms.teacher(t[i]), gap);
    if (mix.jensen == 0 && gradient.lm) value += part;
    s[i] = gradient.lm && i == label ? value - gradient.at_label : value;
  }
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) token_losses_kernel(TokenLossOptions options, T* student, const T* teacher, const int64_t* labels, int64_t vocabulary,
                                                                   TokenLoss* out) {
  __shared__ Shared<T> shared;
  const int64_t token = blockIdx.x;
  T* const s = student + token * vocabulary;
  if (!teacher) lm_row(options, s, vocabulary, labels[token], out + token, shared);
  else full_row(options, s, teacher + token * vocabulary, vocabulary, labels[token], out + token, shared);
}

}  // namespace

void launch_token_losses(const TokenLossOptions& options, Element element, void* student, const void* teacher, const int64_t* labels, int64_t tokens,
                         int64_t vocabulary, TokenLoss* out, cudaStream_t stream) {
  const auto launch = [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((token_losses_kernel<T>), tokens, kRowThreads, stream, options, static_cast<T*>(student), static_cast<const T*>(teacher), labels, vocabulary, out);
  };
  if (element == Element::kFloat64) launch(double{});
  else launch(float{});
}

}  // namespace scalewright::cuda
