#include "train/optimizer.h"

#include <set>

#include "base/error.h"
#include "base/exact_sum.h"
#include "comm/exact_sums.h"
#include "ops/cuda_build.h"
#include "train/adamw_kernel.h"

namespace scalewright {

namespace {

/// Each row's squares in float64 from front to back, the rows exactly: one result whatever the threads, and wherever the rows are.
template <class T>
void add_squares(const T* x, int64_t n, int64_t width, ExactSum& sum) {
  for (int64_t begin = 0; begin < n; begin += width) {
    double row = 0;
    for (int64_t i = begin; i < std::min(n, begin + width); ++i) row += static_cast<double>(x[i]) * x[i];
    sum += row;
  }
}

void update(const AdamWUpdate& u, at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v) {
  if (p.is_cpu()) return adamw_update_cpu(u, p, g, m, v);
  if constexpr (kCudaBuild)
    if (p.is_cuda()) return cuda::adamw_update(u, p, g, m, v);
  m.mul_(u.beta1).add_(g, (1 - u.beta1) * u.factor);
  v.mul_(u.beta2).addcmul_(g, g, (1 - u.beta2) * u.factor * u.factor);
  p.mul_(u.decay).addcdiv_(m, v.sqrt().mul_(u.root).add_(u.eps), -u.rate);
}

}  // namespace

AdamW::AdamW(const TrainSection& options, std::vector<Trainable> trainables, std::vector<double> group_factor)
    : beta1_(options.beta1), beta2_(options.beta2), eps_(options.eps), weight_decay_(options.weight_decay), clip_(options.clip),
      group_factor_(std::move(group_factor)) {
  std::sort(trainables.begin(), trainables.end(), [](const Trainable& a, const Trainable& b) { return a.name < b.name; });
  for (Trainable& trainable : trainables) {
    const auto dtype = trainable.tensor.scalar_type();
    SW_CHECK(dtype == at::kFloat || dtype == at::kDouble, "trainable {} is neither float32 nor float64", trainable.name);
    Slot slot{trainable, trainable.placement ? trainable.placement->replicas() : nullptr, {}, {}, {}};
    const int64_t ranks = slot.replicas ? slot.replicas->size() : 1, elements = trainable.tensor.numel();
    for (int64_t r = 0; r < ranks; ++r) slot.shares.push_back(split_range(elements, 1, ranks, r).size());
    slot.m = at::zeros({slot.own().size()}, trainable.tensor.options().requires_grad(false));
    slot.v = at::zeros_like(slot.m);
    slots_.push_back(std::move(slot));
  }
}

IndexRange AdamW::Slot::own() const {
  return split_range(trainable.tensor.numel(), 1, static_cast<int64_t>(shares.size()), replicas ? replicas->rank() : 0);
}

at::Tensor AdamW::Slot::own_elements(const at::Tensor& all) const { return all.detach().flatten().narrow(0, own().begin, own().size()); }

at::Tensor AdamW::Slot::all_elements(const at::Tensor& share) const {
  return (replicas ? replicas->all_gather(share.contiguous(), shares) : share).view(trainable.tensor.sizes());
}

double AdamW::gradient_norm(const Group* world) const {
  ExactSum sum;
  for (const Slot& slot : slots_) {
    const Trainable& trainable = slot.trainable;
    if (!trainable.tensor.grad().defined() || trainable.tensor.numel() == 0) continue;
    const at::Tensor g = (trainable.placement ? trainable.placement->owned(trainable.tensor.grad()) : trainable.tensor.grad()).cpu().contiguous();
    const int64_t width = trainable.tensor.size(-1);
    if (g.scalar_type() == at::kDouble) add_squares(g.const_data_ptr<double>(), g.numel(), width, sum);
    else add_squares(g.const_data_ptr<float>(), g.numel(), width, sum);
  }
  return std::sqrt(double{world ? add_up(*world, {sum})[0] : sum});
}

void AdamW::step(double lr, double norm) {
  SW_CHECK(std::isfinite(norm), "gradient norm {}", norm);
  at::NoGradGuard no_grad;
  ++updates_;
  const double correction1 = 1 - std::pow(beta1_, updates_), correction2 = std::sqrt(1 - std::pow(beta2_, updates_));
  const double factor = clip_ > 0 && norm > clip_ ? clip_ / norm : 1.0;
  for (Slot& slot : slots_) {
    const std::size_t group = slot.trainable.lr_group;
    const double slot_lr = lr * (group < group_factor_.size() ? group_factor_[group] : 1.0);
    at::Tensor& tensor = slot.trainable.tensor;
    const at::Tensor g = tensor.grad().defined() ? slot.own_elements(tensor.grad()).contiguous() : at::zeros_like(slot.m);
    at::Tensor p = slot.own_elements(tensor).clone();
    update({factor, 1 - slot_lr * weight_decay_, beta1_, beta2_, slot_lr / correction1, 1 / correction2, eps_}, p, g, slot.m, slot.v);
    tensor.copy_(slot.all_elements(p));
  }
}

void AdamW::clear_gradients() {
  for (Slot& slot : slots_) slot.trainable.tensor.mutable_grad().reset();
}

std::map<std::string, at::Tensor> AdamW::state() const {
  std::map<std::string, at::Tensor> state;
  for (const Slot& slot : slots_) {
    const auto& placement = slot.trainable.placement;
    for (const auto& [prefix, share] : {std::pair("adam.m/", slot.m), std::pair("adam.v/", slot.v)}) {
      const at::Tensor local = slot.all_elements(share);
      state[prefix + slot.trainable.name] = placement ? placement->gather(local) : local;
    }
  }
  return state;
}

void AdamW::load_state(const std::map<std::string, at::Tensor>& state, int64_t updates, const std::string& source,
                       const std::function<bool(const std::string&)>& left_out) {
  std::vector<std::string> problems;
  std::set<std::string> known;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;   // first all is checked
  for (const Slot& slot : slots_) {
    const auto& placement = slot.trainable.placement;
    for (const auto& [prefix, own] : {std::pair("adam.m/", slot.m), std::pair("adam.v/", slot.v)}) {
      const std::string name = prefix + slot.trainable.name;
      const std::vector<int64_t> shape = placement ? placement->whole() : slot.trainable.tensor.sizes().vec();
      const auto found = state.find(name);
      known.insert(name);
      if (found == state.end()) problems.push_back(name + " is missing");
      else if (found->second.sizes().vec() != shape || found->second.scalar_type() != own.scalar_type())
        problems.push_back(fmt::format("{} is {} [{}], expected {} [{}]", name, toString(found->second.scalar_type()), fmt::join(found->second.sizes(), "x"),
                                       toString(own.scalar_type()), fmt::join(shape, "x")));
      else copies.emplace_back(own, slot.own_elements(placement ? placement->narrow(found->second) : found->second));
    }
  }
  for (const auto& [name, tensor] : state)
    if (!known.count(name) && !(left_out && left_out(name))) problems.push_back(name + " is not a trainable of this run");
  if (!problems.empty())
    throw DataError(fmt::format("{}: optimizer state does not fit:\n  {}\nhint: resume with the configuration that wrote it", source,
                                fmt::join(problems, "\n  ")));
  for (const auto& [to, from] : copies) to.copy_(from);
  updates_ = updates;
}

bool NonFiniteGuard::accept(int64_t step, double loss, double norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) {
    in_a_row_ = 0;
    return true;
  }
  ++skipped_;
  ++in_a_row_;
  if (in_a_row_ > limit_)
    throw NonFiniteError(fmt::format("step {}: loss {} and gradient norm {}: {} steps in a row were not finite (train.max_skipped {})\n"
                                     "hint: lower train.lr, or look for the bad rows; the last checkpoint is from before these steps",
                                     step, loss, norm, in_a_row_, limit_));
  return false;
}

}  // namespace scalewright
