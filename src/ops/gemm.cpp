#include "ops/gemm.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "ops/deterministic_gemm.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// oneDNN builds a primitive for every new number of rows, which costs more than the product; expert token counts change
// each step.
constexpr int64_t kRowMultiple = 32;

/// Whether oneDNN multiplies bf16 matrices natively here. Else ATen's loop is 8 times slower than float32, and our
/// kernel, which converts blocks in cache, takes as long as float32.
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

void bf16_product(const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb, at::Tensor& out) {
  if (ta == Transpose::kYes) {  // a sum over tokens: padded with zeros
    at::mm_out(out, pad_rows(a).t(), tb == Transpose::kYes ? pad_rows(b.t()) : pad_rows(b));
    return;
  }
  const at::Tensor right = tb == Transpose::kYes ? b.t() : b, padded = pad_rows(a);
  if (padded.size(0) == out.size(0))
    at::mm_out(out, padded, right);
  else
    out.copy_(at::mm(padded, right).narrow(0, 0, out.size(0)));
}

at::Tensor product(const Compute& compute, const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb) {
  at::Tensor out =
      at::empty({a.size(ta == Transpose::kYes ? 1 : 0), b.size(tb == Transpose::kYes ? 0 : 1)}, a.options());
  matmul_out(compute, a, ta, b, tb, out);
  return out;
}

Transpose flip(Transpose t) { return t == Transpose::kYes ? Transpose::kNo : Transpose::kYes; }

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b, const Compute& compute,
                            bool ta, bool tb) {
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
      da = ta == Transpose::kNo ? product(compute, dy, Transpose::kNo, b, flip(tb))
                                : product(compute, b, tb, dy, Transpose::kYes);
    if (ctx->needs_input_grad(1))  // dop(b) = op(a)^T dy
      db = tb == Transpose::kNo ? product(compute, a, flip(ta), dy, Transpose::kNo)
                                : product(compute, dy, Transpose::kYes, a, ta);
    return {da, db, {}, {}, {}};
  }
};

}  // namespace

void matmul_out(const Compute& compute, const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb,
                at::Tensor& out) {
  SW_CHECK(a.dim() == 2 && b.dim() == 2, "matmul of {} by {} dimensions", a.dim(), b.dim());
  const at::Tensor left = ta == Transpose::kYes ? a.t() : a, right = tb == Transpose::kYes ? b.t() : b;
  SW_CHECK(left.size(1) == right.size(0), "matmul of {} by {} values a row", left.size(1), right.size(0));
  SW_CHECK(a.scalar_type() == b.scalar_type(), "matmul of {} by {}", c10::toString(a.scalar_type()),
           c10::toString(b.scalar_type()));
  SW_CHECK(out.dim() == 2 && out.size(0) == left.size(0) && out.size(1) == right.size(1) &&
               (out.stride(1) == 1 || out.size(1) <= 1),
           "matmul of {} rows into {}", left.size(0), out.size(0));
  const at::NoGradGuard no_gradient;
  if (compute.deterministic && !a.is_cpu())
    throw UserError("deterministic matrix products are not built for " + a.device().str() +
                    " yet\n  hint: use the CPU, or leave `deterministic: layout` out");
  const bool bf16_on_cpu = a.is_cpu() && a.scalar_type() == at::kBFloat16;
  if (compute.deterministic || (bf16_on_cpu && !has_bf16_products()))
    deterministic_gemm(left, right, out);
  else if (bf16_on_cpu)
    bf16_product(a, ta, b, tb, out);
  else
    at::mm_out(out, left, right);
}

at::Tensor matmul(const Compute& compute, const at::Tensor& a, Transpose ta, const at::Tensor& b, Transpose tb) {
  if (at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad()))
    return Product::apply(a, b, compute, ta == Transpose::kYes, tb == Transpose::kYes);
  return product(compute, a, ta, b, tb);
}

}  // namespace scalewright
