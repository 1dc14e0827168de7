// Reading, overriding, writing and documenting.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "config/schema.h"
#include "config_file.h"

namespace scalewright {
namespace {

std::string file_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Config, ReadsEveryKindOfValue) {
  const Config config = ConfigFile(
                            "model: {path: /models/a b}\n"
                            "data:\n"
                            "  train: one.jsonl\n"
                            "  validation: [a.jsonl, \"b c.jsonl\"]\n"
                            "train:\n"
                            "  lr: 2e-4\n"
                            "  steps: 1e3\n"
                            "  betas: [0.8, .99]\n"
                            "  resume: 40\n"
                            "  loss: {type: kl, top_k: 64, tail: false}\n"
                            "evaluate:\n"
                            "search: {}\n")
                            .load();
  EXPECT_EQ(config.model.path, "/models/a b");
  EXPECT_EQ(config.data.train, std::vector<std::string>{"one.jsonl"});
  EXPECT_EQ(config.data.validation, (std::vector<std::string>{"a.jsonl", "b c.jsonl"}));
  EXPECT_EQ(config.train.lr, 2e-4);
  EXPECT_EQ(config.train.steps, 1000);
  EXPECT_EQ(config.train.beta1, 0.8);
  EXPECT_EQ(config.train.beta2, 0.99);
  EXPECT_EQ(config.train.resume, "40");
  EXPECT_EQ(config.train.loss.type, "fkl");
  EXPECT_EQ(config.train.loss.top_k, 64);
  EXPECT_FALSE(config.train.loss.tail);
  EXPECT_EQ(config.dialect, "scalewright");
}

TEST(Config, AnEmptyFileIsTheDefaults) {
  EXPECT_EQ(dump_config(ConfigFile("").load()), dump_config(Config{}));
  EXPECT_EQ(dump_config(ConfigFile("# nothing\n").load()), dump_config(default_config({})));
}

TEST(Config, OutputHasShortForms) {
  EXPECT_EQ(ConfigFile("output: angelslim\n").load().output.style, "angelslim");
  EXPECT_EQ(ConfigFile("output: runs/a\n").load().output.path, "runs/a");
  const Config both = ConfigFile("output: {path: runs/a, style: angelslim}\n").load({"output=runs/b"});
  EXPECT_EQ(both.output.path, "runs/b");
  EXPECT_EQ(both.output.style, "angelslim");
}

TEST(Config, AliasesCopyTheirValue) {
  const Config config = ConfigFile("data: {train: &files [a.jsonl], validation: *files}\n").load();
  EXPECT_EQ(config.data.validation, config.data.train);
}

TEST(Config, OverridesComeLastAndPathsAreTakenAsTyped) {
  const ConfigFile file("train: {steps: 5}\nmodel: {path: a}\n");
  const Config config = file.load({"train.steps=7", "model.path=/x/{y}: #1", "data.train=[a, b]",
                                   "train.betas=[0.5, 0.6]", "train.loss={top_k: 3}"});
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.model.path, "/x/{y}: #1");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config.train.beta2, 0.6);
  EXPECT_EQ(config.train.loss.top_k, 3);
}

TEST(Config, AnOverrideMendsAWrongRuleOfTheFile) {
  EXPECT_EQ(
      ConfigFile("train: {micro_batch: 8, global_batch: 12}\n").load({"train.global_batch=16"}).train.global_batch, 16);
}

/// Values of a key that are not its default: what a round trip must carry.
struct OtherValues {
  const Key& key;
  std::vector<std::string> operator()(const Accessor<bool>&) const { return {"true", "false"}; }
  std::vector<std::string> operator()(const Accessor<int64_t>&) const {
    const auto* range = std::get_if<Range>(&key.rule);
    return {range && std::isfinite(range->high) ? "7" : "9007199254740993", "3"};  // 2^53 + 1: no double has it
  }
  std::vector<std::string> operator()(const Accessor<double>&) const { return {"0.1", "0.30000000000000004", "1e-9"}; }
  std::vector<std::string> operator()(const Accessor<std::string>&) const {
    if (const auto* choices = std::get_if<Choices>(&key.rule)) return choices->words;
    if (key.path == "train.resume") return {"never", "12"};
    if (key.path == "export.shard_size") return {"1.5GiB", "800 MB"};
    return {"plain",
            "\"true\"",
            "\"010\"",
            "\"a: b # c\"",
            "\"quote \\\" back \\\\ tab \\t newline \\n\"",
            "\"\\u00e4\\u20ac\"",
            "\"~\"",
            "\"- x\"",
            "\"\""};
  }
  std::vector<std::string> operator()(const Accessor<std::vector<std::string>>&) const {
    return {"[]", "[a]", "[\"a, b\", \"*x\", \"null\", \"1\"]"};
  }
  std::vector<std::string> operator()(const PairAccessor&) const { return {"[0.1, 0.123456789012345678]"}; }
};

/// "a: {b: {c: VALUE}}" of "a.b.c".
std::string nested(const std::string& path, const std::string& value) {
  std::string text, close;
  for (std::size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    text += (begin ? "{" : "") + path.substr(begin, end - begin) + ": ";
    if (begin) close += "}";
    begin = end + 1;
  }
  return text + value + close + "\n";
}

TEST(Config, EveryValueOfEveryKeySurvivesDumpAndLoad) {
  const Schema schema;
  for (const auto& key : schema.keys()) {
    for (const auto& value : std::visit(OtherValues{key}, key.field)) {
      // Without the rules between keys, which other tests look at: a value is set alone here.
      Problems problems;
      Config config;
      ASSERT_TRUE(set_value(key, parse_yaml(value, "value", problems), key.path, config, problems))
          << key.path << " " << value;
      const YamlNode dumped = parse_yaml(dump_config(config), "dump", problems);
      const YamlNode* node = &dumped;
      for (std::size_t begin = 0; begin < key.path.size();) {
        const auto end = std::min(key.path.find('.', begin), key.path.size());
        node = node->find(key.path.substr(begin, end - begin));
        ASSERT_NE(node, nullptr) << key.path;
        begin = end + 1;
      }
      Config back;
      ASSERT_TRUE(set_value(key, *node, key.path, back, problems)) << key.path << " " << value;
      EXPECT_TRUE(problems.empty()) << key.path << " " << value;
      EXPECT_EQ(dump_config(back), dump_config(config)) << key.path << " " << value;
      EXPECT_EQ(value_json(key, back), value_json(key, config)) << key.path << " " << value;
    }
  }
}

TEST(Config, AWholeDumpLoads) {
  const Config config = ConfigFile("train: {steps: 17, min_lr: 1e-5}\nquantize: {skip: [\"a.*\"]}\n").load();
  EXPECT_EQ(dump_config(ConfigFile(dump_config(config)).load()), dump_config(config));
}

TEST(Config, TheSchemaCoversEveryKeyOnce) {
  const Schema schema;
  std::set<std::string> paths;
  for (const auto& key : schema.keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_TRUE(schema.is_section(key.path.substr(0, key.path.rfind('.')))) << key.path;
    EXPECT_FALSE(key.doc.empty()) << key.path;
    // Setting a key's default to itself must be allowed, and a file may hold it.
    Problems problems;
    Config config;
    EXPECT_TRUE(set_value(key, parse_yaml(value_yaml(key, Config{}), "default", problems), key.path, config, problems))
        << key.path;
  }
  EXPECT_EQ(ConfigFile(nested("train.loss.type", "rkl")).load().train.loss.type, "rkl");
}

TEST(Config, JsonSchemaKnowsKeysBoundsAndBothDialects) {
  const auto schema = nlohmann::json::parse(config_json_schema());
  const auto& own = schema["$defs"]["scalewright"]["properties"];
  EXPECT_EQ(own["train"]["properties"]["loss"]["properties"]["type"]["enum"],
            (std::vector<std::string>{"fkl", "rkl", "cakld", "jsd", "kl"}));
  EXPECT_EQ(own["train"]["properties"]["lr"]["exclusiveMinimum"], 0);
  EXPECT_EQ(own["train"]["additionalProperties"], false);
  const auto& peer = schema["$defs"]["mcore_qad"]["properties"]["compression"]["properties"]["MCoreQAD"]["properties"];
  EXPECT_EQ(peer["optim"]["properties"]["lr"]["type"], "number");
}

TEST(Config, TheReferencePageIsCurrent) {
  EXPECT_EQ(file_text(SCALEWRIGHT_SOURCE "/docs/config.md"), config_reference_markdown())
      << "write it again: ./run scalewright config reference > docs/config.md";
}

TEST(Config, ExamplesLoad) {
  for (const char* name : {"recover.yaml", "train.yaml", "mcore_qad.yaml"})
    EXPECT_FALSE(load_config(std::string(SCALEWRIGHT_SOURCE "/examples/tiny/") + name, {}).model.path.empty()) << name;
}

}  // namespace
}  // namespace scalewright
