#include "base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace scalewright {
namespace {

TEST(ExactSum, KnownAnswers) {
  ExactSum tenths;
  for (int i = 0; i < 10; ++i) tenths += 0.1;
  EXPECT_EQ(double{tenths}, 1.0);   // a plain sum gives 0.9999999999999999
  ExactSum cancelled;
  for (const double x : {1e308, 1.0, 1e-300, -1e308, -1.0}) cancelled += x;
  EXPECT_EQ(double{cancelled}, 1e-300);
  // Half way between 1 and its successor: even wins, unless something tiny is left.
  const double half = std::numeric_limits<double>::epsilon() / 2;
  ExactSum tie(1.0);
  tie += half;
  EXPECT_EQ(double{tie}, 1.0);
  tie += 1e-200;
  EXPECT_EQ(double{tie}, 1.0 + 2 * half);
  EXPECT_EQ(double{ExactSum()}, 0.0);
}

TEST(ExactSum, OrderAndGroupingChangeNothing) {
  std::mt19937_64 random(1);
  std::vector<double> terms;
  for (int i = 0; i < 2000; ++i) terms.push_back(std::ldexp(static_cast<double>(random()) - 9e18, static_cast<int>(random() % 200) - 130));
  ExactSum forward;
  for (const double x : terms) forward += x;
  for (int trial = 0; trial < 5; ++trial) {
    std::shuffle(terms.begin(), terms.end(), random);
    std::vector<ExactSum> groups(7);
    for (std::size_t i = 0; i < terms.size(); ++i) groups[random() % 7] += terms[i];
    ExactSum all;
    for (const ExactSum& group : groups)
      for (const double part : group.parts()) all += part;
    EXPECT_EQ(double{all}, double{forward});
  }
  double naive = 0;
  for (const double x : terms) naive += x;
  EXPECT_NE(naive, double{forward});   // else the terms would not show anything
}

TEST(ExactSum, AddsItselfAndOthers) {
  ExactSum sum(0.1);
  sum += 1e20;
  sum += sum;
  sum += ExactSum(-2e20);
  EXPECT_EQ(double{sum}, 0.2);
}

TEST(ExactSum, TermsThatAreNotFiniteShow) {
  ExactSum sum(1.0);
  sum += std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isinf(double{sum}));
  sum += -std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(double{sum}));
  ExactSum other;
  for (const double part : sum.parts()) other += part;
  EXPECT_TRUE(std::isnan(double{other}));
}

}  // namespace
}  // namespace scalewright
