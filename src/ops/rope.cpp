#include "ops/rope.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "ops/cuda_build.h"
#include "ops/rope_kernels.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Rope : torch::autograd::Function<Rope> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return rotate_half(x, cos, sin, false);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotate_half(grads[0], saved[0], saved[1], true), {}, {}};
  }
};

/// The same in ATen's own functions, for devices without a kernel of ours.
at::Tensor composed(const at::Tensor& x, const RopeTable& table) {
  const auto halves = x.to(table.cos.scalar_type()).chunk(2, -1);
  const at::Tensor cos = table.cos.unsqueeze(1), sin = table.sin.unsqueeze(1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1).to(x.scalar_type());
}

}  // namespace

RopeTable make_rope_table(const Compute& compute, const at::Tensor& positions_T, const at::Tensor& inverse_frequencies,
                          double attention_scaling) {
  const at::Tensor angles =
      at::outer(positions_T.to(at::kCPU, at::kDouble), inverse_frequencies.to(at::kCPU, at::kDouble));
  return {(angles.cos() * attention_scaling).to(compute.device, compute.accurate()),
          (angles.sin() * attention_scaling).to(compute.device, compute.accurate())};
}

at::Tensor apply_rope(const at::Tensor& x_THD, const RopeTable& table) {
  SW_CHECK(x_THD.dim() == 3 && table.cos.dim() == 2 && table.cos.size(0) == x_THD.size(0) &&
               2 * table.cos.size(1) == x_THD.size(2),
           "rope of {} tokens of {} values with a table of {} by {}", x_THD.size(0), x_THD.size(-1), table.cos.size(0),
           table.cos.size(-1));
  if (!has_kernels(x_THD)) return composed(x_THD, table);
  return Rope::apply(x_THD, table.cos, table.sin);
}

}  // namespace scalewright
