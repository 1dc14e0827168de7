// The sum of one tensor a data row, in an order that no layout changes.
#pragma once
#include <map>
#include <utility>

#include "comm/group.h"

namespace scalewright {

/// Sums along a binary tree over the rows of an optimizer step: rows 2i and 2i+1 first, then neighbours of two, and so on; a row without a
/// contribution counts as zero. At most log2(rows) tensors are held when rows come in order.
class RowSums {
 public:
  /// `x` is kept and changed. At most one contribution a row.
  void add(int64_t row, at::Tensor x);
  /// The sum over the rows of all ranks of `others` (different rows on each; all must call it; nullptr: this rank's only), in the shape of
  /// `like`; zeros when there were none. The sums start again from nothing.
  at::Tensor take(const Group* others, const at::Tensor& like);

 private:
  using Key = std::pair<int64_t, int64_t>;   // level, index: rows index*2^level .. (index+1)*2^level-1
  void insert(Key key, at::Tensor x);
  void insert_others(const Group& others, const at::Tensor& like);
  std::map<Key, at::Tensor> nodes_;
};

}  // namespace scalewright
