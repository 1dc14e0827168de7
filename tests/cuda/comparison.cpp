#include "comparison.h"

#include <ATen/CPUGeneratorImpl.h>

#if defined(SW_CUDA_EMULATION)
#include "emulation.h"
#endif

namespace scalewright::device_test {
namespace {

struct Line {
  int64_t comparisons = 0, values = 0, different = 0, failed = 0;
  double largest = 0, tolerance = 0;
};
std::map<std::string, Line>& table() {
  static std::map<std::string, Line> lines;
  return lines;
}

at::Tensor here(const at::Tensor& t) { return t.to(at::kCPU).contiguous(); }

/// Whether each value has other bits than the wanted one (float64 holds every value exactly).
at::Tensor differs(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  const at::Tensor sign = (a == 0).logical_and(at::signbit(a) != at::signbit(b));
  return (a != b).logical_or(sign).logical_and((a.isnan() & b.isnan()).logical_not());
}

void note(const std::string& kernel, const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
  Line& line = table()[kernel];
  ++line.comparisons;
  line.tolerance = std::max(line.tolerance, tolerance);
  const at::Tensor a = here(got), b = here(want);
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    ++line.failed;
    ADD_FAILURE() << kernel << ", " << what << ": another shape or type";
    return;
  }
  line.values += a.numel();
  if (a.numel() == 0) return;
  const at::Tensor other = differs(a, b);
  const int64_t count = other.sum().item<int64_t>();
  line.different += count;
  if (count == 0) return;
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  const at::Tensor size = y.abs().masked_fill(y.isfinite().logical_not(), 0.0).max().clamp_min(1.0);
  const at::Tensor error = ((x - y).abs() / size).masked_fill(other.logical_not(), 0.0);
  const double largest = error.nan_to_num(1e300, 1e300).max().item<double>();   // a NaN or infinity on one side only
  line.largest = std::max(line.largest, largest);
  if (largest <= tolerance && tolerance > 0) return;
  ++line.failed;
  const int64_t first = other.flatten().to(at::kByte).argmax().item<int64_t>();
  ADD_FAILURE() << kernel << ", " << what << ": " << count << " of " << a.numel() << " values differ, by up to " << largest << "; the first is ["
                << first << "]: " << x.flatten()[first].item<double>() << " instead of " << y.flatten()[first].item<double>();
}

}  // namespace

at::Device device() {
#if defined(SW_CUDA_EMULATION)
  return at::kCPU;
#else
  return at::Device(at::kCUDA, 0);
#endif
}

at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

at::Tensor adversarial(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype, bool special) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed + 1000);
  at::Tensor x = normal(sizes, seed, at::kFloat).flatten();
  const int64_t n = x.numel();
  if (n == 0) return x.view(sizes).to(dtype);
  const at::Tensor kind = at::randint(0, 12, {n}, generator, at::kLong);
  const at::Tensor power = at::randint(-60, 40, {n}, generator, at::kFloat);
  x = at::where(kind == 0, x * at::exp2(power), x);
  x = at::where(kind == 1, (x * 8).round() * 0.25f, x);    // ties of every grid for scales that are powers of two
  x = at::where(kind == 2, at::full_like(x, 0.0f), x);
  x = at::where(kind == 3, at::full_like(x, -0.0f), x);
  x = at::where(kind == 4, x * 1e-41f, x);                 // denormals
  if (special) {
    const at::Tensor rare = at::randint(0, 97, {n}, generator, at::kLong);
    x = at::where(rare == 0, at::full_like(x, std::numeric_limits<float>::quiet_NaN()), x);
    x = at::where(rare == 1, at::full_like(x, std::numeric_limits<float>::infinity()), x);
    x = at::where(rare == 2, at::full_like(x, -std::numeric_limits<float>::infinity()), x);
    x = at::where(rare == 3, at::full_like(x, 3e38f), x);
  }
  return x.view(sizes).to(dtype);
}

void expect_same(const std::string& kernel, const at::Tensor& got, const at::Tensor& want, const std::string& what) { note(kernel, got, want, 0, what); }

void expect_near(const std::string& kernel, const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
#if defined(SW_CUDA_EMULATION)
  note(kernel, got, want, 0, what + " (tolerance on a device " + std::to_string(tolerance) + ")");
#else
  note(kernel, got, want, tolerance, what);
#endif
}

}  // namespace scalewright::device_test

int main(int argc, char** argv) {
  using namespace scalewright::device_test;
  testing::InitGoogleTest(&argc, argv);
#if !defined(SW_CUDA_EMULATION)
  if (!at::hasCUDA()) {
    std::printf("SKIPPED: no CUDA device is here\n");
    return 77;
  }
#endif
  const int result = RUN_ALL_TESTS();
  std::printf("\n%-34s %11s %12s %10s %12s %10s  %s\n", "kernel", "comparisons", "values", "different", "largest", "tolerance", "verdict");
  bool good = result == 0;
  for (const auto& [kernel, line] : table()) {
    std::printf("%-34s %11lld %12lld %10lld %12.3g %10.3g  %s\n", kernel.c_str(), static_cast<long long>(line.comparisons), static_cast<long long>(line.values),
                static_cast<long long>(line.different), line.largest, line.tolerance, line.failed ? "FAILED" : "ok");
    good = good && line.failed == 0;
  }
#if defined(SW_CUDA_EMULATION)
  std::printf("emulated on the host: %lld launches; no GPU was used\n", static_cast<long long>(emulation::launches()));
#endif
  return good ? 0 : 1;
}
