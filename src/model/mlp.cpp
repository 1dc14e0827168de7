#include "model/mlp.h"

#include "model/collectives.h"
#include "ops/activation.h"
#include "ops/permute.h"

namespace scalewright {

DenseMlp::DenseMlp(std::unique_ptr<Projection> gate_up, std::unique_ptr<Projection> down) : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

at::Tensor DenseMlp::forward(const at::Tensor& x_tH, Mode mode, const LayoutPtr& layout) {
  return down_->forward(swiglu(gate_up_->forward(x_tH, {}, mode, layout)), {}, mode, layout);
}

void DenseMlp::collect(std::vector<Projection*>& projections) {
  projections.push_back(gate_up_.get());
  projections.push_back(down_.get());
}

MoeMlp::MoeMlp(Router router, const Mesh& mesh, std::unique_ptr<Projection> gate_up, std::unique_ptr<Projection> down, std::unique_ptr<DenseMlp> shared)
    : router_(std::move(router)), mesh_(mesh), gate_up_(std::move(gate_up)), down_(std::move(down)), shared_(std::move(shared)) {}

at::Tensor MoeMlp::forward(const at::Tensor& x_tH, Mode mode, const LayoutPtr& layout) {
  const Routing routing = router_.route(x_tH);
  const ExpertOrder order = sort_by_expert(routing.expert, gate_up_->spec().experts);
  const at::Tensor sorted = gather_tokens(x_tH, order);
  const int64_t choices = routing.expert.size(1);
  RoutedRows rows{order.offsets, {}, choices};
  if (at::GradMode::is_enabled() && gate_up_->canonical()) {
    const at::Tensor slot = order.slot.cpu();
    rows.keys = layout->own_index.index_select(0, at::floor_divide(slot, choices)) * choices + slot.remainder(choices);
  }
  const at::Tensor out = mesh_.ep().alone() ? experts(sorted, rows, mode, layout) : remote_experts(sorted, rows, mode, layout);
  const at::Tensor y = combine_tokens(out, routing.weight, order);
  return shared_ ? y + shared_->forward(x_tH, mode, layout) : y;
}

/// Tokens of this rank's experts, sorted by expert.
at::Tensor MoeMlp::experts(const at::Tensor& sorted, const RoutedRows& rows, Mode mode, const LayoutPtr& layout) {
  return down_->forward(swiglu(gate_up_->forward(sorted, rows, mode, layout)), rows, mode, layout);
}

/// The same for tokens of all experts: rows go to the ranks of their experts, where they are sorted again (by expert, then by the rank
/// that they came from), and the results come back in their places.
at::Tensor MoeMlp::remote_experts(const at::Tensor& sorted, const RoutedRows& rows, Mode mode, const LayoutPtr& layout) {
  const Group& ep = mesh_.ep();
  const int64_t ranks = ep.size(), all = gate_up_->spec().experts, local = all / ranks;
  at::Tensor counts = at::empty({all}, at::kLong);
  for (int64_t e = 0; e < all; ++e) counts[e] = rows.offsets[e + 1] - rows.offsets[e];
  const std::vector<int64_t> equal(static_cast<std::size_t>(ranks), local);
  const at::Tensor received = ep.all_to_all(counts, equal, equal).view({ranks, local});   // [from, local expert]
  const auto sums = [](const at::Tensor& x) {
    const at::Tensor sum = x.sum(1).contiguous();
    return std::vector<int64_t>(sum.const_data_ptr<int64_t>(), sum.const_data_ptr<int64_t>() + sum.numel());
  };
  const std::vector<int64_t> send_rows = sums(counts.view({ranks, local})), receive_rows = sums(received);

  // Received rows lie by (rank, expert); the products want them by (expert, rank).
  const at::Tensor ends = received.flatten().cumsum(0);
  std::vector<at::Tensor> order{at::empty({0}, at::kLong)};
  RoutedRows own{{0}, {}, rows.choices};
  for (int64_t e = 0; e < local; ++e) {
    int64_t tokens = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t count = received[r][e].item<int64_t>(), end = ends[r * local + e].item<int64_t>();
      order.push_back(at::arange(end - count, end, at::kLong));
      tokens += count;
    }
    own.offsets.push_back(own.offsets.back() + tokens);
  }
  const at::Tensor by_expert = at::cat(order).to(sorted.device()), by_rank = at::argsort(by_expert);
  const at::Tensor arrived = exchange_rows(sorted, ep, send_rows, receive_rows).index_select(0, by_expert);
  if (rows.keys.defined()) own.keys = ep.all_to_all(rows.keys, send_rows, receive_rows).index_select(0, by_expert.cpu());
  const at::Tensor out = experts(arrived, own, mode, layout);
  return exchange_rows(out.index_select(0, by_rank), ep, receive_rows, send_rows);
}

void MoeMlp::collect(std::vector<Projection*>& projections) {
  projections.push_back(gate_up_.get());
  projections.push_back(down_.get());
  if (shared_) shared_->collect(projections);
}

}  // namespace scalewright
