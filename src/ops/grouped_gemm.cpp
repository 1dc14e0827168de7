#include "ops/grouped_gemm.h"

#include <ATen/ops/_grouped_mm.h>

namespace scalewright {
namespace {

constexpr int64_t kAligned = 8;   // bfloat16 values in the 16 bytes that rows must be multiples of

/// The end of each expert's rows, as the grouped product wants them.
at::Tensor ends_of(const std::vector<int64_t>& offsets, const at::Tensor& like) {
  return at::tensor(offsets, at::kLong).slice(0, 1).to(at::kInt).to(like.device(), at::kInt, /*non_blocking=*/true);
}

}  // namespace

bool has_grouped_products(const Compute& compute, const at::Tensor& x_TK, const at::Tensor& w_ENK) {
  return x_TK.is_cuda() && !compute.deterministic && x_TK.scalar_type() == at::kBFloat16 && w_ENK.scalar_type() == at::kBFloat16 && w_ENK.size(0) > 1 &&
         x_TK.size(0) > 0 && w_ENK.size(1) % kAligned == 0 && w_ENK.size(2) % kAligned == 0;
}

at::Tensor grouped_nt(const at::Tensor& x_TK, const std::vector<int64_t>& offsets, const at::Tensor& w_ENK) {
  return at::_grouped_mm(x_TK.contiguous(), w_ENK.contiguous().transpose(1, 2), ends_of(offsets, x_TK));
}

at::Tensor grouped_nn(const at::Tensor& dy_TN, const std::vector<int64_t>& offsets, const at::Tensor& w_ENK) {
  return at::_grouped_mm(dy_TN.contiguous(), w_ENK.contiguous(), ends_of(offsets, dy_TN));
}

at::Tensor grouped_tn(const at::Tensor& dy_TN, const std::vector<int64_t>& offsets, const at::Tensor& x_TK) {
  at::Tensor dw = at::_grouped_mm(dy_TN.contiguous().t(), x_TK.contiguous(), ends_of(offsets, x_TK));
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e] == offsets[e + 1]) dw[static_cast<int64_t>(e)].zero_();   // a sum of no terms, whatever the kernel left there
  return dw;
}

}  // namespace scalewright
