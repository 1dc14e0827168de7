#include "eval/comparison.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace scalewright {
namespace {

Scores scores_of(const std::vector<double>& a, const std::vector<double>& b) {
  Scores scores;
  scores.tasks = {{.name = "a", .items = a, .hash = "ha"}, {.name = "b", .items = b, .hash = "hb"}};
  return scores;
}

const Scores kReference = scores_of({1, 1, 1, 1}, {1, 1, 1, 1});
const Scores kDamaged = scores_of({1, 0, 0, 1}, {1, 1, 1, 0});
const Scores kRepaired = scores_of({1, 1, 0, 1}, {1, 1, 1, 1});

TEST(Comparison, PairedByQuestion) {
  const Comparison c = compare_scores("ref", kReference, "cand", kDamaged);
  ASSERT_EQ(c.tasks.size(), 2u);
  EXPECT_DOUBLE_EQ(c.tasks[0].difference.value, -0.5);
  EXPECT_DOUBLE_EQ(c.tasks[0].difference.stderr_, std::sqrt(1.0 / 12));     // d = 0 -1 -1 0
  EXPECT_DOUBLE_EQ(c.tasks[1].difference.stderr_, std::sqrt(0.75 / 12));    // d = 0 0 0 -1
  EXPECT_NEAR(*c.tasks[0].mcnemar_p, 0.5, 1e-12);                           // 2 of 2 lost: 2/4; lgamma's rounding
  EXPECT_DOUBLE_EQ(c.average.value, -0.375);
  EXPECT_DOUBLE_EQ(c.average.stderr_, std::sqrt(1.75 / 12) / 2);
  EXPECT_EQ(c.change, Change::kWithinNoise);                                // 0.375 against 2 * 0.191
}

TEST(Comparison, OtherQuestionsAreNotPaired) {
  Scores other = kDamaged;
  other.tasks[0].hash = "another";
  const Comparison c = compare_scores("ref", kReference, "cand", other);
  EXPECT_FALSE(c.tasks[0].paired);
  EXPECT_FALSE(c.tasks[0].mcnemar_p.has_value());
  EXPECT_DOUBLE_EQ(c.tasks[0].difference.stderr_, kDamaged.tasks[0].standard_error());   // the baseline's is 0
  EXPECT_TRUE(c.tasks[1].paired);
}

TEST(Comparison, SampledItemsHaveNoMcNemar) {
  const Comparison c = compare_scores("r", kReference, "c", scores_of({1, 0.5, 1, 1}, {1, 1, 1, 1}));
  EXPECT_FALSE(c.tasks[0].mcnemar_p.has_value());
  EXPECT_DOUBLE_EQ(c.tasks[0].difference.value, -0.125);
}

TEST(Comparison, RecoveredShareFromTheThirdOn) {
  const auto all = compare_all({"bf16", "ptq", "qad"}, {kReference, kDamaged, kRepaired});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FALSE(all[0].recovered.has_value());
  EXPECT_DOUBLE_EQ(*all[1].recovered, (0.875 - 0.625) / (1 - 0.625));
  EXPECT_NE(format_table(all).find("66.7%"), std::string::npos);
}

TEST(Comparison, TasksOfOnlyOneSideAreNamed) {
  Scores fewer = kDamaged;
  fewer.tasks.pop_back();
  const Comparison c = compare_scores("ref", kReference, "cand", fewer);
  EXPECT_EQ(c.missing, std::vector<std::string>{"b"});
  EXPECT_DOUBLE_EQ(c.average.value, -0.5);
  EXPECT_FALSE(failed_gates({c}, 1.0).empty());
  fewer.tasks[0].name = "c";
  EXPECT_THROW(compare_scores("ref", kReference, "cand", fewer), DataError);
}

TEST(Comparison, GateIsOnEveryTaskAndInclusive) {
  const auto all = compare_all({"bf16", "ptq"}, {kReference, kDamaged});
  EXPECT_TRUE(failed_gates(all, 0.5).empty());
  EXPECT_EQ(failed_gates(all, 0.4).size(), 1u);     // task a
  EXPECT_EQ(failed_gates(all, 0.1).size(), 3u);     // a, b, average
}

TEST(Comparison, JsonCarriesEveryNumber) {
  Scores candidate = kDamaged;
  candidate.divergence = Divergence{.tokens = 5, .fkl = 0.5, .fkl_stderr = 0.1, .top1_agreement = 0.9};
  const OrderedJson json = to_json(compare_all({"bf16", "ptq"}, {kReference, candidate}));
  EXPECT_EQ(json["baseline"], "bf16");
  const OrderedJson& c = json["candidates"][0];
  EXPECT_EQ(c["name"], "ptq");
  EXPECT_EQ(c["tasks"]["a"]["difference"], -0.5);
  EXPECT_EQ(c["tasks"]["a"]["verdict"], "within noise");
  EXPECT_EQ(c["average"]["difference"], -0.375);
  EXPECT_EQ(c["fkl"]["mean"], 0.5);
  EXPECT_TRUE(c["recovered"].is_null());
}

}  // namespace
}  // namespace scalewright
