#include "model/canonical_linear.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "model/collectives.h"
#include "model/grouped_linear.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct KeptCanonicalCall : torch::CustomClassHolder {
  explicit KeptCanonicalCall(std::shared_ptr<const CanonicalCall> c) : call(std::move(c)) {}
  std::shared_ptr<const CanonicalCall> call;
};

bool spread(const CanonicalCall& call) { return call.part.cut == ProjectionPart::Cut::kRows; }

/// Rows of the whole weight on each tp rank.
std::vector<int64_t> rows_of_ranks(const CanonicalCall& call) {
  std::vector<int64_t> rows;
  const int ranks = call.part.holders->size();
  for (int r = 0; r < ranks; ++r) rows.push_back(split_range(call.part.whole_rows, 1, ranks, r).size());
  return rows;
}

/// The whole [1,N,...] from this rank's rows [1,n,...].
at::Tensor whole_rows(const CanonicalCall& call, const at::Tensor& part) {
  if (!part.defined() || !spread(call)) return part;
  return call.part.holders->all_gather(part[0].contiguous(), rows_of_ranks(call)).unsqueeze(0);
}

/// Tokens of all tp and cp ranks in the order of the documents, from this rank's.
at::Tensor all_tokens(const CanonicalCall& call, const at::Tensor& x, bool tp_gathered) {
  const TokenLayout& layout = *call.layout;
  at::Tensor all = tp_gathered || call.mesh->tp().alone() ? x : call.mesh->tp().all_gather(x.contiguous(), layout.tp_rows);
  if (layout.cp_order.defined()) all = call.mesh->cp().all_gather(all.contiguous(), layout.cp_rows).index_select(0, layout.cp_order.to(x.device()));
  return all;
}

/// d(alpha) of the rows of experts at `offsets` in x [T,K], dy [T,n], which are the tokens of one data row.
void add_data_row(const CanonicalCall& call, int64_t row, const at::Tensor& dy, const at::Tensor& x, const std::vector<int64_t>& offsets, const at::Tensor& source,
                  const at::Tensor& alpha) {
  if (x.size(0) == 0 || alpha.numel() == 0) return;
  at::Tensor d_alpha = at::zeros(alpha.sizes(), alpha.options().requires_grad(false));
  add_alpha_gradients(call.compute, *call.quantizer, dy, x, offsets, source, d_alpha);
  call.sums->add(row, d_alpha);
}

void dense_gradient(const CanonicalCall& call, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& source, const at::Tensor& alpha) {
  const bool tp = spread(call);
  const at::Tensor own_columns =
      tp ? exchange_columns(dy, *call.part.holders, call.layout->tp_rows, rows_of_ranks(call)) : dy;   // [T_tp, n]: all tokens, the rows held here
  const at::Tensor all_dy = all_tokens(call, own_columns, tp), all_x = all_tokens(call, x, false);
  const DataRows& rows = call.layout->own_rows;
  for (std::size_t r = 0; r + 1 < rows.offsets.size(); ++r) {
    const int64_t begin = rows.offsets[r], count = rows.offsets[r + 1] - begin;
    add_data_row(call, rows.first + static_cast<int64_t>(r), all_dy.narrow(0, begin, count), all_x.narrow(0, begin, count), {0, count}, source, alpha);
  }
}

void expert_gradient(const CanonicalCall& call, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& source, const at::Tensor& alpha) {
  const Group& edp = call.mesh->edp();
  const int64_t experts = source.size(0);
  at::Tensor expert = at::empty({x.size(0)}, at::kLong);
  for (int64_t e = 0; e < experts; ++e) expert.narrow(0, call.routed.offsets[e], call.routed.offsets[e + 1] - call.routed.offsets[e]).fill_(e);
  at::Tensor all_x = x, all_dy = dy, key = at::stack({call.routed.keys, expert}, 1);
  if (!edp.alone()) {
    const at::Tensor counts = edp.all_gather(at::full({1}, x.size(0), at::kLong), std::vector<int64_t>(static_cast<std::size_t>(edp.size()), 1));
    const std::vector<int64_t> rows(counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel());
    all_x = edp.all_gather(x.contiguous(), rows);
    all_dy = edp.all_gather(dy.contiguous(), rows);
    key = edp.all_gather(key.contiguous(), rows);
  }
  // By data row, then expert, then token.
  const DataRows& data = call.layout->all_rows;
  const at::Tensor ends = at::tensor(std::vector<int64_t>(data.offsets.begin() + 1, data.offsets.end()), at::kLong);
  const at::Tensor token = at::floor_divide(key.select(1, 0), call.routed.choices), row = at::searchsorted(ends, token.contiguous(), false, /*right=*/true);
  const int64_t keys = data.offsets.back() * call.routed.choices;
  const at::Tensor order = at::argsort((row * experts + key.select(1, 1)) * keys + key.select(1, 0)).to(x.device());
  all_x = all_x.index_select(0, order);
  all_dy = all_dy.index_select(0, order);
  const auto data_rows = static_cast<int64_t>(data.offsets.size()) - 1;
  const at::Tensor counts = at::bincount(row * experts + key.select(1, 1), {}, data_rows * experts);
  const int64_t* count = counts.const_data_ptr<int64_t>();
  int64_t begin = 0;
  for (int64_t r = 0; r < data_rows; ++r) {
    std::vector<int64_t> offsets{0};
    for (int64_t e = 0; e < experts; ++e) offsets.push_back(offsets.back() + count[r * experts + e]);
    add_data_row(call, data.first + r, all_dy.narrow(0, begin, offsets.back()), all_x.narrow(0, begin, offsets.back()), offsets, source, alpha);
    begin += offsets.back();
  }
}

struct CanonicalLinear : Function<CanonicalLinear> {
  using Optional = std::optional<at::Tensor>;
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Optional& alpha, const at::Tensor& w, const Optional& bias, const Optional& source,
                            const std::shared_ptr<const CanonicalCall>& call) {
    const bool trains = alpha && alpha->requires_grad();
    context->save_for_backward({trains ? x : at::Tensor(), w, trains ? *source : at::Tensor(), trains ? *alpha : at::Tensor()});
    context->saved_data["x_needs_gradient"] = x.requires_grad();
    context->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<KeptCanonicalCall>(call));
    return grouped_product(call->compute, x, call->routed.offsets.empty() ? std::vector<int64_t>{0, x.size(0)} : call->routed.offsets, whole_rows(*call, w),
                           whole_rows(*call, bias.value_or(at::Tensor())));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &source = saved[2], &alpha = saved[3], dy = gradients[0].contiguous();
    const auto kept = c10::static_intrusive_pointer_cast<KeptCanonicalCall>(context->saved_data["call"].toCapsule());
    const CanonicalCall& call = *kept->call;
    at::Tensor dx;
    if (context->saved_data["x_needs_gradient"].toBool())
      dx = grouped_input_gradient(call.compute, dy, call.routed.offsets.empty() ? std::vector<int64_t>{0, dy.size(0)} : call.routed.offsets, whole_rows(call, w));
    if (alpha.defined()) (call.routed.offsets.empty() ? dense_gradient : expert_gradient)(call, dy, x, source, alpha);
    return {dx, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor canonical_linear(const std::shared_ptr<const CanonicalCall>& call, const at::Tensor& x_tK, const at::Tensor& w_EnK, const at::Tensor& bias_En,
                            const at::Tensor& source_EnK, const at::Tensor& alpha) {
  const auto optional = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt; };
  return CanonicalLinear::apply(x_tK.contiguous(), optional(alpha), w_EnK, optional(bias_En), optional(source_EnK), call);
}

}  // namespace scalewright
