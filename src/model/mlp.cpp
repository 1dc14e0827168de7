#include "model/mlp.h"

#include "ops/activation.h"
#include "ops/permute.h"

namespace scalewright {

DenseMlp::DenseMlp(std::unique_ptr<Projection> gate_up, std::unique_ptr<Projection> down) : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

at::Tensor DenseMlp::forward(const at::Tensor& x_TH, Mode mode) {
  return down_->forward(swiglu(gate_up_->forward(x_TH, {}, mode)), {}, mode);
}

void DenseMlp::collect(std::vector<Projection*>& projections) {
  projections.push_back(gate_up_.get());
  projections.push_back(down_.get());
}

MoeMlp::MoeMlp(Router router, std::unique_ptr<Projection> gate_up, std::unique_ptr<Projection> down, std::unique_ptr<DenseMlp> shared)
    : router_(std::move(router)), gate_up_(std::move(gate_up)), down_(std::move(down)), shared_(std::move(shared)) {}

at::Tensor MoeMlp::forward(const at::Tensor& x_TH, Mode mode) {
  const Routing routing = router_.route(x_TH);
  const ExpertOrder order = sort_by_expert(routing.expert, gate_up_->spec().experts);
  const at::Tensor sorted = gather_tokens(x_TH, order);
  const at::Tensor hidden = swiglu(gate_up_->forward(sorted, order.offsets, mode));
  const at::Tensor out = down_->forward(hidden, order.offsets, mode);
  const at::Tensor y = combine_tokens(out, routing.weight, order);
  return shared_ ? y + shared_->forward(x_TH, mode) : y;
}

void MoeMlp::collect(std::vector<Projection*>& projections) {
  projections.push_back(gate_up_.get());
  projections.push_back(down_.get());
  if (shared_) shared_->collect(projections);
}

}  // namespace scalewright
