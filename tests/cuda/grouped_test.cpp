// Grouped products against one product an expert.
#include "comparison.h"
#include "ops/grouped_gemm.h"

namespace scalewright::device_test {
namespace {

/// Sums in float32 in another order, then rounded to bfloat16: one unit of its 8 bits, doubled for sums that cancel.
constexpr double kTolerance = 2.0 / 128;

TEST(Grouped, ProductsOfEveryExpert) {
  const std::vector<int64_t> offsets = {0, 9, 9, 40, 41};
  const int64_t experts = 4, n = 24, k = 48, rows = offsets.back();
  const at::Tensor x = normal({rows, k}, 51, at::kBFloat16), w = normal({experts, n, k}, 52, at::kBFloat16), dy = normal({rows, n}, 53, at::kBFloat16);
  const at::Tensor y = grouped_nt(there(x), offsets, there(w)).to(at::kCPU), dx = grouped_nn(there(dy), offsets, there(w)).to(at::kCPU),
                   dw = grouped_tn(there(dy), offsets, there(x)).to(at::kCPU);
  const auto near = [](const at::Tensor& got, const at::Tensor& want) {
    ASSERT_EQ(got.sizes(), want.sizes());
    if (want.numel() == 0) return;
    EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), kTolerance * want.abs().max().clamp_min(1.0).item<double>());
  };
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = offsets[e], count = offsets[e + 1] - begin;
    const at::Tensor x_e = x.narrow(0, begin, count).to(at::kDouble), dy_e = dy.narrow(0, begin, count).to(at::kDouble), w_e = w[e].to(at::kDouble);
    near(y.narrow(0, begin, count), x_e.mm(w_e.t()));
    near(dx.narrow(0, begin, count), dy_e.mm(w_e));
    near(dw[e], dy_e.t().mm(x_e));
  }
}

}  // namespace
}  // namespace scalewright::device_test
