#include "ops/permute.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "ops/cuda_build.h"
#include "ops/permute_kernels.h"
#include "ops/tensors_cuda.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The sorted row of every (token, choice).
at::Tensor inverse_of(const at::Tensor& slot) {
  if constexpr (kCudaBuild)
    if (slot.is_cuda()) return cuda::inverse_of(slot);
  at::Tensor inverse = at::empty_like(slot);
  const int64_t* slots = slot.const_data_ptr<int64_t>();
  int64_t* rows = inverse.data_ptr<int64_t>();
  at::parallel_for(0, slot.numel(), 16384, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) rows[slots[r]] = r;
  });
  return inverse;
}

struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& token,
                            const at::Tensor& slot) {
    ctx->save_for_backward({slot});
    ctx->saved_data["tokens"] = x.size(0);
    return copy_rows(x, token);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor slot = ctx->get_saved_variables()[0];
    return {sum_choices(grads[0], {}, inverse_of(slot), ctx->saved_data["tokens"].toInt()), {}, {}};
  }
};

struct Combine : torch::autograd::Function<Combine> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& weight,
                            const at::Tensor& token, const at::Tensor& slot) {
    const at::Tensor inverse = inverse_of(slot);
    ctx->save_for_backward({y, weight, token, slot, inverse});
    return sum_choices(y, weight, inverse, weight.size(0));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &y = saved[0], &weight = saved[1], &dout = grads[0];
    at::Tensor dy, dweight;
    if (ctx->needs_input_grad(0)) dy = scale_rows(dout, weight, saved[2], saved[3]);
    if (ctx->needs_input_grad(1)) dweight = choice_dots(dout, y, weight, saved[4]);
    return {dy, dweight, {}, {}};
  }
};

/// A counting sort: stable, linear.
ExpertOrder counting_sort(const at::Tensor& expert_Tk, int64_t num_experts) {
  const at::Tensor experts = expert_Tk.to(at::kLong).contiguous();
  const int64_t slots = experts.numel(), choices = std::max<int64_t>(experts.size(1), 1);
  const int64_t* expert = experts.const_data_ptr<int64_t>();
  ExpertOrder order{at::empty({slots}, experts.options()), at::empty({slots}, experts.options()),
                    std::vector<int64_t>(static_cast<std::size_t>(num_experts) + 1, 0)};
  for (int64_t s = 0; s < slots; ++s) {
    SW_CHECK(expert[s] >= 0 && expert[s] < num_experts, "token {} is routed to expert {} of {}", s / choices, expert[s],
             num_experts);
    ++order.offsets[static_cast<std::size_t>(expert[s]) + 1];
  }
  for (std::size_t e = 0; e < static_cast<std::size_t>(num_experts); ++e) order.offsets[e + 1] += order.offsets[e];
  std::vector<int64_t> next = order.offsets;
  int64_t *token = order.token.data_ptr<int64_t>(), *slot = order.slot.data_ptr<int64_t>();
  for (int64_t s = 0; s < slots; ++s) {
    const int64_t row = next[static_cast<std::size_t>(expert[s])]++;
    slot[row] = s;
    token[row] = s / choices;
  }
  return order;
}

/// The same by ATen's stable sort, for other devices.
ExpertOrder stable_sort(const at::Tensor& expert_Tk, int64_t num_experts) {
  const at::Tensor flat = expert_Tk.reshape({-1}).to(at::kLong);
  const at::Tensor slot = std::get<1>(at::sort(flat, /*stable=*/true, 0, false));
  const at::Tensor ends = at::bincount(flat, {}, num_experts).cumsum(0).to(at::kCPU);
  ExpertOrder order{at::floor_divide(slot, std::max<int64_t>(expert_Tk.size(1), 1)), slot, {0}};
  order.offsets.insert(order.offsets.end(), ends.const_data_ptr<int64_t>(),
                       ends.const_data_ptr<int64_t>() + num_experts);
  return order;
}

}  // namespace

ExpertOrder sort_by_expert(const at::Tensor& expert_Tk, int64_t num_experts) {
  SW_CHECK(expert_Tk.dim() == 2, "a routing of {} dimensions", expert_Tk.dim());
  return expert_Tk.is_cpu() ? counting_sort(expert_Tk, num_experts) : stable_sort(expert_Tk, num_experts);
}

at::Tensor gather_tokens(const at::Tensor& x_TH, const ExpertOrder& order) {
  const int64_t tokens = x_TH.size(0), rows = order.slot.numel();
  SW_CHECK(x_TH.dim() == 2 && (tokens == 0 ? rows == 0 : rows % tokens == 0), "{} sorted rows of {} tokens", rows,
           tokens);
  if (has_kernels(x_TH)) return Gather::apply(x_TH, order.token, order.slot);
  // Every choice is a row of its own first, so that the gradient is a sum in a fixed order and not an atomic addition.
  return x_TH.unsqueeze(1)
      .expand({tokens, tokens == 0 ? 0 : rows / tokens, x_TH.size(1)})
      .reshape({rows, x_TH.size(1)})
      .index_select(0, order.slot);
}

at::Tensor combine_tokens(const at::Tensor& y, const at::Tensor& weight_Tk, const ExpertOrder& order) {
  SW_CHECK(y.dim() == 2 && weight_Tk.dim() == 2 && y.size(0) == weight_Tk.numel() && y.size(0) == order.slot.numel(),
           "{} rows with {} weights in an order of {}", y.size(0), weight_Tk.numel(), order.slot.numel());
  if (has_kernels(y)) return Combine::apply(y, weight_Tk, order.token, order.slot);
  const auto exact = y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor rows =
      y.index_select(0, order.slot.argsort()).view({weight_Tk.size(0), weight_Tk.size(1), y.size(1)});
  return (rows.to(exact) * weight_Tk.to(exact).unsqueeze(-1)).sum(1).to(y.scalar_type());
}

}  // namespace scalewright
