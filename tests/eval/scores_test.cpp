#include "eval/scores.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "temporary_folder.h"

namespace scalewright {
namespace {

Scores example() {
  Scores scores;
  scores.model = "models/tiny";
  scores.quantization = "nvfp4";
  scores.tasks = {{.name = "sort", .items = {1, 0, 1, 1}, .hash = "abc"}, {.name = "add", .items = {0.25, 1}, .runs = 4}};
  scores.divergence = Divergence{.tokens = 12, .fkl = 0.0495, .fkl_stderr = 0.002, .top1_agreement = 0.97};
  scores.perplexity = 1.25;
  scores.details["seed"] = 3;
  return scores;
}

TEST(Scores, JsonHasTheDocumentedShape) {
  const OrderedJson json = to_json(example());
  EXPECT_EQ(json["tasks"]["sort"]["n"], 4);
  EXPECT_EQ(json["tasks"]["sort"]["correct"], 3);
  EXPECT_EQ(json["tasks"]["sort"]["accuracy"], 0.75);
  EXPECT_DOUBLE_EQ(json["tasks"]["sort"]["stderr"].get<double>(), 0.25);   // sd 1/2 over sqrt(4)
  EXPECT_EQ(json["tasks"]["sort"]["items"].dump(), "[1,0,1,1]");
  EXPECT_EQ(json["tasks"].begin().key(), "sort") << "file order, not name order";
  EXPECT_EQ(json["divergence"]["tokens"], 12);
  EXPECT_EQ(json["divergence"]["fkl"]["mean"], 0.0495);
  EXPECT_EQ(json["divergence"]["fkl"]["stderr"], 0.002);
  EXPECT_EQ(json["divergence"]["top1_agreement"], 0.97);
  EXPECT_EQ(json["perplexity"], 1.25);
  EXPECT_DOUBLE_EQ(json["average"].get<double>(), (0.75 + 0.625) / 2);
  EXPECT_EQ(json["seed"], 3);
}

TEST(Scores, RoundTrip) {
  TemporaryFolder folder;
  write_scores(folder.path() / "scores.json", example());
  EXPECT_EQ(to_json(read_scores(folder.path() / "scores.json")), to_json(example()));
}

TEST(Scores, UnknownStandardErrorSurvives) {
  Scores scores = example();
  scores.tasks = {{.name = "one", .items = {1}}};
  scores.divergence.reset();
  TemporaryFolder folder;
  write_scores(folder.path() / "s.json", scores);
  const Scores back = read_scores(folder.path() / "s.json");
  EXPECT_TRUE(std::isnan(back.tasks[0].standard_error()));
  EXPECT_FALSE(back.divergence.has_value());
}

TEST(Scores, MinimalFileOfAnotherProgramIsRead) {
  TemporaryFolder folder;
  const auto path = folder.write("s.json", R"({"model": "m", "quantization": "none",
      "tasks": {"t": {"n": 2, "correct": 1, "accuracy": 0.5, "stderr": 0.5, "items": [1, 0]}}, "average": 0.5})");
  EXPECT_EQ(read_scores(path).tasks.at(0).accuracy(), 0.5);
}

TEST(Scores, ContradictionsAreErrors) {
  for (const auto& [change, reason] : std::vector<std::pair<std::string, std::string>>{
           {R"({"/tasks/sort/n": 5})", "items"},
           {R"({"/tasks/sort/correct": 1})", "sum"},
           {R"({"/tasks/sort/items/0": 2})", "within 0 and 1"},
           {R"({"/tasks/sort/items": "x"})", "list"},
           {R"({"/tasks": {}})", "at least one"},
           {R"({"/model": 1})", "string"},
           {R"({"/divergence/tokens": "x"})", "number"}}) {
    OrderedJson json = to_json(example());
    const OrderedJson changes = OrderedJson::parse(change);
    json[OrderedJson::json_pointer(changes.begin().key())] = changes.begin().value();
    try {
      scores_from_json(json, "file.json");
      ADD_FAILURE() << change;
    } catch (const DataError& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.rfind("file.json", 0), 0u) << message;
      EXPECT_NE(message.find(reason), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace scalewright
