#include "model/row_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace scalewright {
namespace {

at::Tensor row(int64_t i) { return at::tensor({std::pow(3.0f, static_cast<float>(i % 17)) / 7, 1.0f / static_cast<float>(i + 1)}, at::kFloat); }

at::Tensor sum_of(const std::vector<int64_t>& rows) {
  RowSums sums;
  for (const int64_t i : rows) sums.add(i, row(i));
  return sums.take(nullptr, row(0));
}

TEST(RowSums, FollowsTheTree) {
  const at::Tensor want = ((row(0) + row(1)) + (row(2) + row(3))) + row(4);
  EXPECT_TRUE(at::equal(sum_of({0, 1, 2, 3, 4}), want));
  // Without row 1, row 0 stands for its pair.
  EXPECT_TRUE(at::equal(sum_of({0, 2, 3, 4}), (row(0) + (row(2) + row(3))) + row(4)));
}

TEST(RowSums, AnyOrderGivesTheSameBits) {
  std::mt19937 random(2);
  for (const int64_t count : {1, 2, 7, 12, 64, 100}) {
    std::vector<int64_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    const at::Tensor want = sum_of(rows);
    for (int trial = 0; trial < 4; ++trial) {
      std::shuffle(rows.begin(), rows.end(), random);
      EXPECT_TRUE(at::equal(sum_of(rows), want)) << count;
    }
  }
}

TEST(RowSums, StartsAgainAfterItWasTaken) {
  RowSums sums;
  EXPECT_TRUE(at::equal(sums.take(nullptr, row(0)), at::zeros({2})));
  sums.add(3, row(3));
  EXPECT_TRUE(at::equal(sums.take(nullptr, row(0)), row(3)));
  EXPECT_TRUE(at::equal(sums.take(nullptr, row(0)), at::zeros({2})));
}

}  // namespace
}  // namespace scalewright
