#include "comm/exact_sums.h"

#include <numeric>

namespace scalewright {

namespace {

/// A vector of every rank, one after another.
template <class T>
std::vector<T> gather(const Group& group, const std::vector<T>& own, const std::vector<int64_t>& sizes) {
  const at::Tensor all = group.all_gather(at::tensor(own, c10::CppTypeToScalarType<T>::value), sizes);
  return {all.const_data_ptr<T>(), all.const_data_ptr<T>() + all.numel()};
}

}  // namespace

std::vector<ExactSum> add_up(const Group& group, const std::vector<ExactSum>& own) {
  if (group.alone()) return own;
  std::vector<int64_t> counts;   // parts of each sum
  std::vector<double> parts;
  for (const ExactSum& sum : own) {
    const std::vector<double> some = sum.parts();
    counts.push_back(static_cast<int64_t>(some.size()));
    parts.insert(parts.end(), some.begin(), some.end());
  }
  const std::size_t ranks = static_cast<std::size_t>(group.size());
  const std::vector<int64_t> all_counts = gather(group, counts, std::vector<int64_t>(ranks, static_cast<int64_t>(own.size())));
  std::vector<int64_t> totals;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto first = all_counts.begin() + static_cast<std::ptrdiff_t>(r * own.size());
    totals.push_back(std::accumulate(first, first + static_cast<std::ptrdiff_t>(own.size()), int64_t{0}));
  }
  const std::vector<double> all_parts = gather(group, parts, totals);
  std::vector<ExactSum> result(own.size());
  auto part = all_parts.begin();
  for (std::size_t i = 0; i < all_counts.size(); ++i)
    for (int64_t n = 0; n < all_counts[i]; ++n) result[i % own.size()] += *part++;
  return result;
}

}  // namespace scalewright
