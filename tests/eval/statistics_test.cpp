// Known answers worked out by hand, and the limits of each formula.
#include "eval/statistics.h"

#include <gtest/gtest.h>

namespace scalewright {
namespace {

using Values = std::vector<double>;

TEST(Statistics, MeanAndStandardError) {
  EXPECT_DOUBLE_EQ(mean(Values{1, 2, 3, 4}), 2.5);
  // Squares about 2.5: 2.25 + .25 + .25 + 2.25 = 5; 5/3/4.
  EXPECT_DOUBLE_EQ(standard_error(Values{1, 2, 3, 4}), std::sqrt(5.0 / 12.0));
  EXPECT_DOUBLE_EQ(standard_error(Values{1, 1, 1}), 0);
}

TEST(Statistics, TooFewValuesGiveNoStandardError) {
  EXPECT_TRUE(std::isnan(mean(Values{})));
  EXPECT_TRUE(std::isnan(standard_error(Values{1})));
  EXPECT_TRUE(std::isnan(clustered_mean(Values{1}, Values{2}).stderr_));
}

TEST(Statistics, ClusterOfOneTokenEachIsThePlainStandardError) {
  const Values values{0.1, 0.4, 0.2, 0.9};
  const Estimate clustered = clustered_mean(values, Values{1, 1, 1, 1});
  EXPECT_DOUBLE_EQ(clustered.value, mean(values));
  EXPECT_DOUBLE_EQ(clustered.stderr_, standard_error(values));
}

TEST(Statistics, TokensOfOneQuestionAreNotIndependent) {
  // Two questions of 2 tokens: totals 2 and 6, mean 8/4 = 2, residuals -2 and 2: sqrt(2/1 * 8)/4 = 1.
  const Estimate e = clustered_mean(Values{2, 6}, Values{2, 2});
  EXPECT_DOUBLE_EQ(e.value, 2);
  EXPECT_DOUBLE_EQ(e.stderr_, 1);
}

TEST(Statistics, PairedDifferenceUsesTheQuestionsInCommon) {
  // d = 0, -1, 0, 1: mean 0, squares 2, sqrt(2/3/4).
  const Estimate same = paired_difference(Values{1, 1, 0, 0}, Values{1, 0, 0, 1});
  EXPECT_DOUBLE_EQ(same.value, 0);
  EXPECT_DOUBLE_EQ(same.stderr_, std::sqrt(2.0 / 12.0));
  const Estimate lost = paired_difference(Values{1, 1, 1, 1}, Values{1, 0, 1, 1});
  EXPECT_DOUBLE_EQ(lost.value, -0.25);
}

TEST(Statistics, UnpairedAndAverageAddInSquares) {
  const Estimate difference = unpaired_difference({0.9, 0.03}, {0.8, 0.04});
  EXPECT_NEAR(difference.value, -0.1, 1e-15);   // decimal fractions are not exact
  EXPECT_DOUBLE_EQ(difference.stderr_, 0.05);
  const Estimate all = average(std::vector<Estimate>{{0.1, 0.3}, {0.3, 0.4}});
  EXPECT_DOUBLE_EQ(all.value, 0.2);
  EXPECT_DOUBLE_EQ(all.stderr_, 0.25);
}

TEST(Statistics, McNemarCountsDiscordantPairs) {
  // 1 won, 5 lost: 2 * (C(6,0) + C(6,1)) / 64 = 14/64.
  const Values baseline{1, 1, 1, 1, 1, 0, 1, 0}, candidate{0, 0, 0, 0, 0, 1, 1, 0};
  EXPECT_NEAR(mcnemar_exact(baseline, candidate), 14.0 / 64.0, 1e-12);   // lgamma's rounding
  EXPECT_DOUBLE_EQ(mcnemar_exact(baseline, baseline), 1);
  EXPECT_DOUBLE_EQ(mcnemar_exact(Values{1, 0}, Values{0, 1}), 1);        // 2 * (1 + 2)/4 is capped
}

TEST(Statistics, McNemarOfManyPairsStaysFinite) {
  const Values baseline(5000, 1), candidate(5000, 0);
  EXPECT_GE(mcnemar_exact(baseline, candidate), 0);
  EXPECT_LT(mcnemar_exact(baseline, candidate), 1e-300);
}

TEST(Statistics, RecoveredShare) {
  EXPECT_DOUBLE_EQ(recovered_share(1.0, 0.5, 0.75), 0.5);
  EXPECT_DOUBLE_EQ(recovered_share(1.0, 0.5, 1.25), 1.5);
  EXPECT_TRUE(std::isnan(recovered_share(0.9, 0.9, 0.9)));
}

TEST(Statistics, VerdictNeedsMoreThanTwoStandardErrors) {
  EXPECT_EQ(judge({0.05, 0.02}), Change::kBetter);
  EXPECT_EQ(judge({-0.05, 0.02}), Change::kWorse);
  EXPECT_EQ(judge({0.04, 0.02}), Change::kWithinNoise);
  EXPECT_EQ(judge({0, 0}), Change::kWithinNoise);
  EXPECT_EQ(judge({-0.5, std::numeric_limits<double>::quiet_NaN()}), Change::kWithinNoise);
  EXPECT_EQ(change_name(Change::kWithinNoise), "within noise");
}

}  // namespace
}  // namespace scalewright
