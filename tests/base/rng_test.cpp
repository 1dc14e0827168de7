#include "base/rng.h"

#include <gtest/gtest.h>

#include <set>

namespace scalewright {
namespace {

// Random123's kat_vectors, "philox4x32 10".
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, FirstWordsOfBlockZero) { EXPECT_EQ(Philox(0, 0).bits(0), 0xe169c58d6627e8d5ull); }

TEST(Philox, SeedStreamAndIndexEachMatterInBothHalves) {
  std::set<std::uint64_t> values;
  const std::uint64_t words[] = {0, 1, std::uint64_t{1} << 32};
  for (const auto seed : words) {
    for (const auto stream : words) {
      for (const auto index : words) values.insert(Philox(seed, stream).bits(index));
    }
  }
  EXPECT_EQ(values.size(), 27u);
}

TEST(Philox, UniformLiesInTheUnitIntervalWithMeanHalf) {
  const Philox random(7, 3);
  double sum = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.uniform(i);
    ASSERT_GE(x, 0.0);
    ASSERT_LT(x, 1.0);
    sum += x;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);   // five standard errors of 0.289 / sqrt(1e5)
}

TEST(Philox, BelowReachesEveryValueEvenly) {
  const Philox random(7, 4);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60000; ++i) ++counts.at(random.below(i, 6));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 460);   // five standard deviations of sqrt(6e4 * 5/36)
  EXPECT_EQ(random.below(0, 1), 0u);
  EXPECT_LT(random.below(0, ~std::uint64_t{0}), ~std::uint64_t{0});
}

TEST(Philox, NormalHasTheMomentsOfANormal) {
  const Philox random(7, 5);
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal(i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.016);       // five standard errors: 1, sqrt(2) and sqrt(96) over sqrt(1e5)
  EXPECT_NEAR(squares / kCount, 1, 0.023);
  EXPECT_NEAR(fourth / kCount, 3, 0.16);
}

}  // namespace
}  // namespace scalewright
