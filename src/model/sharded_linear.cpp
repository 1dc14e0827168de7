#include "model/sharded_linear.h"
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gemm.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct ShardedLinear : Function<ShardedLinear> {
  using Optional = std::optional<at::Tensor>;

  static at::Tensor gathered(const WeightShards& shards, const at::Tensor& w) { return shards.group->all_gather(w[0].contiguous(), shards.rows); }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Optional& alpha, const at::Tensor& w, const Optional& bias, const Optional& source,
                            const Compute& compute, const WeightShards& shards, const WeightQuantizer* quantizer) {
    const bool trains = alpha && alpha->requires_grad();
    context->save_for_backward({trains ? x : at::Tensor(), w, trains ? *source : at::Tensor(), trains ? *alpha : at::Tensor()});
    context->saved_data["x_needs_gradient"] = x.requires_grad();
    context->saved_data["dtype"] = static_cast<int64_t>(compute.dtype);
    context->saved_data["group"] = reinterpret_cast<int64_t>(shards.group);   // the mesh and projections outlive every graph
    context->saved_data["rows"] = shards.rows;
    context->saved_data["quantizer"] = reinterpret_cast<int64_t>(quantizer);
    const at::Tensor y = matmul_nt(compute, x, gathered(shards, w));
    return bias ? y + (*bias)[0] : y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &source = saved[2], &alpha = saved[3], dy = gradients[0].contiguous();
    const Compute compute{static_cast<at::ScalarType>(context->saved_data["dtype"].toInt()), dy.device(), false};
    const WeightShards shards{reinterpret_cast<const Group*>(context->saved_data["group"].toInt()), context->saved_data["rows"].toIntVector()};
    at::Tensor dx, d_alpha;
    if (context->saved_data["x_needs_gradient"].toBool()) dx = matmul_nn(compute, dy, gathered(shards, w));
    if (alpha.defined()) {
      d_alpha = at::zeros_like(alpha);
      const at::Tensor dw = shards.group->reduce_scatter(matmul_tn(compute, dy, x), shards.rows);
      if (dw.numel() > 0) reinterpret_cast<const WeightQuantizer*>(context->saved_data["quantizer"].toInt())->add_alpha_gradient(source, 0, 0, dw, d_alpha);
    }
    return {dx, d_alpha, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor sharded_linear(const Compute& compute, const WeightShards& shards, const at::Tensor& x_TK, const at::Tensor& w, const at::Tensor& bias,
                          const WeightQuantizer* quantizer, const at::Tensor& source, const at::Tensor& alpha) {
  const auto optional = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt; };
  return ShardedLinear::apply(x_TK.contiguous(), optional(alpha), w, optional(bias), optional(source), compute, shards, quantizer);
}

}  // namespace scalewright
