// The comparison of CUDA kernels with the CPU's: where tensors go, what counts as equal, and the table of what was compared.
#pragma once
#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>

namespace scalewright::device_test {

/// The GPU; the CPU where the kernels are emulated.
at::Device device();
inline at::Tensor there(const at::Tensor& t) { return t.defined() ? t.to(device()) : t; }

/// Standard normal values.
at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kFloat);
/// Normal values over all magnitudes, among them zeros of both signs, denormals, exact halves and quarters; `special`: also NaN and
/// infinities.
at::Tensor adversarial(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype, bool special);

/// Equal bits, but for NaN, of which any equals any. Notes the comparison in the table under `kernel`.
void expect_same(const std::string& kernel, const at::Tensor& got, const at::Tensor& want, const std::string& what);
/// |got - want| <= tolerance * max(1, largest finite |want|), NaN and infinities in the same places. In the emulation the host's own
/// functions are used, so that bits must be equal there too.
void expect_near(const std::string& kernel, const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what);

}  // namespace scalewright::device_test
