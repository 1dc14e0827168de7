#include "model/row_sums.h"

#include "base/error.h"

namespace scalewright {

void RowSums::add(int64_t row, at::Tensor x) { insert({0, row}, std::move(x)); }

void RowSums::insert(Key key, at::Tensor x) {
  SW_CHECK(!nodes_.count(key), "two sums for rows {} of level {}", key.second, key.first);
  for (auto other = nodes_.find({key.first, key.second ^ 1}); other != nodes_.end(); other = nodes_.find({key.first, key.second ^ 1})) {
    x = key.second & 1 ? other->second.add_(x) : x.add_(other->second);
    nodes_.erase(other);
    key = {key.first + 1, key.second / 2};
  }
  nodes_.emplace(key, std::move(x));
}

void RowSums::insert_others(const Group& others, const at::Tensor& like) {
  std::vector<int64_t> keys;
  std::vector<at::Tensor> values{at::empty({0}, like.options().requires_grad(false))};
  for (const auto& [key, x] : nodes_) {
    keys.insert(keys.end(), {key.first, key.second});
    values.push_back(x.flatten());
  }
  const std::vector<int64_t> ones(static_cast<std::size_t>(others.size()), 1);
  const at::Tensor counts = others.all_gather(at::full({1}, static_cast<int64_t>(nodes_.size()), at::kLong), ones);
  std::vector<int64_t> key_rows, value_rows;
  for (int r = 0; r < others.size(); ++r) {
    key_rows.push_back(2 * counts[r].item<int64_t>());
    value_rows.push_back(counts[r].item<int64_t>() * like.numel());
  }
  const at::Tensor all_keys = others.all_gather(at::tensor(keys, at::kLong), key_rows), all = others.all_gather(at::cat(values), value_rows);
  nodes_.clear();
  for (int64_t i = 0; 2 * i < all_keys.numel(); ++i)
    insert({all_keys[2 * i].item<int64_t>(), all_keys[2 * i + 1].item<int64_t>()}, all.narrow(0, i * like.numel(), like.numel()).view(like.sizes()).clone());
}

at::Tensor RowSums::take(const Group* others, const at::Tensor& like) {
  at::NoGradGuard no_grad;
  if (others && !others->alone()) insert_others(*others, like);
  if (nodes_.empty()) return at::zeros(like.sizes(), like.options().requires_grad(false));
  while (nodes_.size() > 1) {   // the lowest node has no neighbour: its rows have none but zeros
    const auto lowest = nodes_.begin();
    const Key key = lowest->first;
    at::Tensor x = std::move(lowest->second);
    nodes_.erase(lowest);
    insert({key.first + 1, key.second / 2}, std::move(x));
  }
  at::Tensor sum = nodes_.begin()->second;
  nodes_.clear();
  return sum;
}

}  // namespace scalewright
