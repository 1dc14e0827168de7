#include "ops/norm.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "ops/cuda_build.h"
#include "ops/norm_kernels.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    auto [y, rstd] = rms_norm_forward(x, weight, eps);
    ctx->save_for_backward({x, weight, rstd});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto [dx, dweight] =
        rms_norm_backward(grads[0], saved[0], saved[1], saved[2], ctx->needs_input_grad(0), ctx->needs_input_grad(1));
    return {dx, dweight, {}};
  }
};

/// The same in ATen's own functions, for devices without a kernel of ours.
at::Tensor composed(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor exact = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return weight * (exact * at::rsqrt(exact.square().mean(-1, true) + eps)).to(x.scalar_type());
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  SW_CHECK(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1), "norm over {} values with {} weights",
           x.size(-1), weight.numel());
  SW_CHECK(x.scalar_type() == weight.scalar_type(), "norm of {} with weights in {}", c10::toString(x.scalar_type()),
           c10::toString(weight.scalar_type()));
  if (!has_kernels(x)) return composed(x, weight, eps);
  return RmsNorm::apply(x, weight, eps);
}

}  // namespace scalewright
