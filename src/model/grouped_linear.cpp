#include "model/grouped_linear.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "ops/gemm.h"
#include "ops/grouped_gemm.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// A dW tile of this many elements stays in the second-level cache while it is reduced.
constexpr int64_t kTileElements = 1 << 18;

}  // namespace

at::Tensor grouped_product(const Compute& compute, const at::Tensor& x, const std::vector<int64_t>& offsets, const at::Tensor& w, const at::Tensor& bias) {
  const int64_t experts = w.size(0);
  if (experts == 1) {
    at::Tensor y = matmul_nt(compute, x, w[0]);
    return bias.defined() ? y.add_(bias[0]) : y;
  }
  if (!bias.defined() && has_grouped_products(compute, x, w)) return grouped_nt(x, offsets, w);
  at::Tensor y = at::empty({x.size(0), w.size(1)}, x.options());
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = offsets[e], rows = offsets[e + 1] - begin;
    if (rows == 0) continue;
    at::Tensor part = y.narrow(0, begin, rows);
    matmul_out(compute, x.narrow(0, begin, rows), Transpose::kNo, w[e], Transpose::kYes, part);
    if (bias.defined()) part.add_(bias[e]);
  }
  return y;
}

at::Tensor grouped_input_gradient(const Compute& compute, const at::Tensor& dy, const std::vector<int64_t>& offsets, const at::Tensor& w) {
  if (w.size(0) == 1) return matmul_nn(compute, dy, w[0]);
  if (has_grouped_products(compute, dy, w)) return grouped_nn(dy, offsets, w);
  at::Tensor dx = at::empty({dy.size(0), w.size(2)}, dy.options());
  for (int64_t e = 0; e < w.size(0); ++e) {
    const int64_t begin = offsets[e], rows = offsets[e + 1] - begin;
    if (rows == 0) continue;
    at::Tensor part = dx.narrow(0, begin, rows);
    matmul_out(compute, dy.narrow(0, begin, rows), Transpose::kNo, w[e], Transpose::kNo, part);
  }
  return dx;
}

void add_alpha_gradients(const Compute& compute, const WeightQuantizer& quantizer, const at::Tensor& dy, const at::Tensor& x,
                         const std::vector<int64_t>& offsets, const at::Tensor& source, at::Tensor& d_alpha) {
  const int64_t experts = source.size(0), rows = source.size(1), columns = source.size(2);
  if (columns == 0) return;   // another tensor-parallel rank has all groups
  if (has_grouped_products(compute, x, source)) {   // one dW of all experts: a GPU is filled by one launch, not by tiles
    quantizer.add_alpha_gradient(source, 0, 0, grouped_tn(dy, offsets, x).view({experts * rows, columns}), d_alpha);
    return;
  }
  const int64_t tile = std::clamp<int64_t>(kTileElements / columns, 16, rows);
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = offsets[e], count = offsets[e + 1] - begin;
    if (count == 0) continue;
    const at::Tensor dy_e = dy.narrow(0, begin, count), x_e = x.narrow(0, begin, count);
    for (int64_t row = 0; row < rows; row += tile) {
      const int64_t n = std::min(tile, rows - row);
      const at::Tensor dw = matmul_tn(compute, dy_e.narrow(1, row, n), x_e);
      quantizer.add_alpha_gradient(source, e, row, dw, d_alpha);
    }
  }
}

namespace {

struct GroupedLinear : Function<GroupedLinear> {
  using Optional = std::optional<at::Tensor>;
  // Absent tensors come as empty optionals: the node asks every tensor among its inputs for a device.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Optional& alpha, const at::Tensor& w, const Optional& bias,
                            const Optional& source, const Compute& compute, const std::vector<int64_t>& offsets, const WeightQuantizer* quantizer) {
    const bool trains = alpha && alpha->requires_grad();
    context->save_for_backward({trains ? x : at::Tensor(), w, trains ? *source : at::Tensor(), trains ? *alpha : at::Tensor()});
    context->saved_data["x_needs_gradient"] = x.requires_grad();
    context->saved_data["dtype"] = static_cast<int64_t>(compute.dtype);
    context->saved_data["deterministic"] = compute.deterministic;
    context->saved_data["offsets"] = offsets;
    context->saved_data["quantizer"] = reinterpret_cast<int64_t>(quantizer);
    return grouped_product(compute, x, offsets, w, bias.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &source = saved[2], &alpha = saved[3];
    const at::Tensor dy = gradients[0].contiguous();
    // The quantizer's pointer is plain because projections outlive every graph.
    const auto* quantizer = reinterpret_cast<const WeightQuantizer*>(context->saved_data["quantizer"].toInt());
    const Compute compute{static_cast<at::ScalarType>(context->saved_data["dtype"].toInt()), dy.device(), context->saved_data["deterministic"].toBool()};
    const std::vector<int64_t> offsets = context->saved_data["offsets"].toIntVector();
    at::Tensor dx, d_alpha;
    if (context->saved_data["x_needs_gradient"].toBool()) dx = grouped_input_gradient(compute, dy, offsets, w);
    if (alpha.defined()) add_alpha_gradients(compute, *quantizer, dy, x, offsets, source, d_alpha = at::zeros_like(alpha));
    return {dx, d_alpha, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor grouped_linear(const Compute& compute, const at::Tensor& x_TK, const std::vector<int64_t>& offsets, const at::Tensor& w_ENK,
                          const at::Tensor& bias_EN, const WeightQuantizer* quantizer, const at::Tensor& source_ENK, const at::Tensor& alpha) {
  std::vector<int64_t> rows = offsets.empty() ? std::vector<int64_t>{0, x_TK.size(0)} : offsets;
  SW_CHECK(static_cast<int64_t>(rows.size()) == w_ENK.size(0) + 1 && rows.back() == x_TK.size(0), "offsets do not fit: {} experts, {} rows",
           w_ENK.size(0), x_TK.size(0));
  const auto optional = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt; };
  return GroupedLinear::apply(x_TK.contiguous(), optional(alpha), w_ENK, optional(bias_EN), optional(source_ENK), compute, rows, quantizer);
}

}  // namespace scalewright
