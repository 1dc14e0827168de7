// Shared by the tests of ops: seeded tensors, gradient checks, thread counts.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "ops/compute.h"

namespace scalewright {

inline const Compute kExact{at::kDouble, at::kCPU, false};

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kDouble) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::TensorOptions().dtype(at::kDouble))
      .to(dtype);
}

inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Largest |a - b| in units of the spacing of bfloat16 at max(|b|, 1).
inline double bf16_steps(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor size = b.to(at::kDouble).abs().clamp_min(1.0);
  return ((a.to(at::kDouble) - b.to(at::kDouble)).abs() / at::exp2(at::floor(at::log2(size)) - 7)).max().item<double>();
}

/// Runs f with a number of threads.
template <typename F>
auto with_threads(int threads, F&& f) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  auto result = f();
  at::set_num_threads(before);
  return result;
}

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Gradients of sum(f(inputs) * r) for a fixed random r.
inline std::vector<at::Tensor> gradients(const Function& f, const std::vector<at::Tensor>& inputs,
                                         std::uint64_t seed = 99) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_());
  const at::Tensor y = f(leaves);
  (y * random(y.sizes(), seed, y.scalar_type())).sum().backward();
  std::vector<at::Tensor> out;
  for (const at::Tensor& x : leaves) out.push_back(x.grad().defined() ? x.grad() : at::zeros_like(x));
  return out;
}

/// Compares gradients in float64 with central differences of step 1e-5. Their error is about 1e-10 (the third
/// derivative) plus 1e-16/1e-5 times the sum's size, so 1e-7 leaves room and still shows any wrong term.
inline void expect_gradients_match_differences(const Function& f, const std::vector<at::Tensor>& inputs) {
  const auto analytic = gradients(f, inputs);
  const double step = 1e-5;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    std::vector<at::Tensor> moved;
    for (const at::Tensor& x : inputs) moved.push_back(x.detach().clone().contiguous());
    at::Tensor numeric = at::empty_like(moved[n]);
    for (int64_t i = 0; i < moved[n].numel(); ++i) {
      double sums[2];
      double& element = moved[n].data_ptr<double>()[i];
      const double kept = element;
      for (int side = 0; side < 2; ++side) {
        element = kept + (side == 0 ? step : -step);
        const at::Tensor y = f(moved);
        sums[side] = (y * random(y.sizes(), 99, y.scalar_type())).sum().item<double>();
      }
      element = kept;
      numeric.data_ptr<double>()[i] = (sums[0] - sums[1]) / (2 * step);
    }
    EXPECT_LT(max_difference(analytic[n], numeric), 1e-7) << "input " << n;
  }
}

}  // namespace scalewright
