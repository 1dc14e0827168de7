#include "ops/gemm.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "ops/deterministic_gemm.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// oneDNN builds a primitive for every new number of rows, which costs more than the product; expert token counts change each step.
constexpr int64_t kRowMultiple = 32;

/// Whether oneDNN multiplies bf16 matrices natively here (else ATen's loop is 8 times slower than converting).
bool has_bf16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return true;
#endif
}

at::Tensor pad_rows(const at::Tensor& x) {
  const int64_t extra = (kRowMultiple - x.size(0) % kRowMultiple) % kRowMultiple;
  return extra == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, extra});
}

at::Tensor bf16_product(const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb) {
  const int64_t rows = ta == Transpose::kYes ? a.size(1) : a.size(0);
  if (ta == Transpose::kYes)  // a sum over tokens: padded with zeros
    return at::mm(pad_rows(a).t(), tb == Transpose::kYes ? pad_rows(b.t()) : pad_rows(b));
  return at::mm(pad_rows(a), tb == Transpose::kYes ? b.t() : b).narrow(0, 0, rows);
}

at::Tensor product(const Compute& compute, const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb) {
  const at::Tensor left = ta == Transpose::kYes ? a.t() : a, right = tb == Transpose::kYes ? b.t() : b;
  SW_CHECK(a.dim() == 2 && b.dim() == 2 && left.size(1) == right.size(0), "matmul of {} by {} values a row", left.size(1), right.size(0));
  SW_CHECK(a.scalar_type() == b.scalar_type(), "matmul of {} by {}", c10::toString(a.scalar_type()), c10::toString(b.scalar_type()));
  if (compute.deterministic) {
    if (!a.is_cpu())
      throw UserError("deterministic matrix products are not built for " + a.device().str() + " yet\n  hint: use the CPU, or leave `deterministic: layout` out");
    return deterministic_gemm(left, right);
  }
  if (a.is_cpu() && a.scalar_type() == at::kBFloat16)
    return has_bf16_products() ? bf16_product(a, ta, b, tb) : at::mm(left.to(at::kFloat), right.to(at::kFloat)).to(at::kBFloat16);
  return at::mm(left, right);
}

Transpose flip(Transpose t) { return t == Transpose::kYes ? Transpose::kNo : Transpose::kYes; }

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b, const Compute& compute, bool ta, bool tb) {
    ctx->save_for_backward({a, b});
    ctx->saved_data["deterministic"] = compute.deterministic;
    ctx->saved_data["ta"] = ta;
    ctx->saved_data["tb"] = tb;
    return product(compute, a, ta ? Transpose::kYes : Transpose::kNo, b, tb ? Transpose::kYes : Transpose::kNo);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &dy = grads[0];
    const Compute compute{a.scalar_type(), a.device(), ctx->saved_data["deterministic"].toBool()};
    const auto ta = ctx->saved_data["ta"].toBool() ? Transpose::kYes : Transpose::kNo;
    const auto tb = ctx->saved_data["tb"].toBool() ? Transpose::kYes : Transpose::kNo;
    at::Tensor da, db;
    if (ctx->needs_input_grad(0))  // dop(a) = dy op(b)^T
      da = ta == Transpose::kNo ? product(compute, dy, Transpose::kNo, b, flip(tb)) : product(compute, b, tb, dy, Transpose::kYes);
    if (ctx->needs_input_grad(1))  // dop(b) = op(a)^T dy
      db = tb == Transpose::kNo ? product(compute, a, flip(ta), dy, Transpose::kNo) : product(compute, dy, Transpose::kYes, a, ta);
    return {da, db, {}, {}, {}};
  }
};

}  // namespace

at::Tensor matmul(const Compute& compute, const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb) {
  if (at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad()))
    return Product::apply(a, b, compute, ta == Transpose::kYes, tb == Transpose::kYes);
  return product(compute, a, ta, b, tb);
}

}  // namespace scalewright
