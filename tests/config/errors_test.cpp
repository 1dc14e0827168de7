// What a wrong configuration is answered with.
#include <gtest/gtest.h>

#include "config_file.h"

namespace scalewright {
namespace {

using Lines = std::vector<std::string>;

TEST(ConfigErrors, AreToldAllAtOnceInFileOrderWithSuggestions) {
  const ConfigFile file(
      "trian:\n"
      "  steps: 5\n"
      "train:\n"
      "  stpes: 100\n"
      "  lr: fast\n"
      "  schedule: cosin\n"
      "  micro_batch: 0\n"
      "quantize:\n"
      "  recompute: true\n"
      "  format: nvfp5\n");
  EXPECT_EQ(file.errors(),
            (Lines{
                "run.yaml:1:1: unknown key 'trian' (did you mean 'train'?)",
                "run.yaml:4:3: unknown key 'train.stpes' (did you mean 'train.steps'?)",
                "run.yaml:5:7: train.lr: 'fast' is not a finite number (allowed: number, above 0 and at most 1000000)",
                "run.yaml:6:13: train.schedule: 'cosin' is not allowed, did you mean 'cosine'? (allowed: constant, "
                "linear, cosine, wsd)",
                "run.yaml:7:16: train.micro_batch: 0 is out of range (allowed: whole number, at least 1 and at most 1048576)",
                "run.yaml:9:3: unknown key 'quantize.recompute' (did you mean 'train.recompute'?)",
                "run.yaml:10:11: quantize.format: 'nvfp5' is not allowed, did you mean 'nvfp4'? (allowed: nvfp4, "
                "nvfp4a16, w4a16, w8a8, fp8, w4afp8)",
            }));
}

TEST(ConfigErrors, KeysUnderAMisspeltSectionAreCheckedToo) {
  const ConfigFile file("trian:\n  steps: none\n  lrr: 1\n");
  EXPECT_EQ(file.errors(),
            (Lines{
                "run.yaml:1:1: unknown key 'trian' (did you mean 'train'?)",
                "run.yaml:2:10: train.steps: 'none' is not a whole number (allowed: whole number, at least 1)",
                "run.yaml:3:3: unknown key 'train.lrr' (did you mean 'train.lr'?)",
            }));
}

TEST(ConfigErrors, DuplicateKeysAreRefusedAtEveryDepth) {
  const ConfigFile file("train:\n  steps: 5\n  steps: 6\ntrain:\n  lr: 1\n");
  EXPECT_EQ(file.errors(), (Lines{
                               "run.yaml:3:3: key 'steps' is given twice (first at line 2)",
                               "run.yaml:4:1: key 'train' is given twice (first at line 1)",
                           }));
}

/// The error of `train: {steps: VALUE}`.
std::string steps_error(const std::string& value) {
  const auto errors = ConfigFile("train: {steps: " + value + "}\n").errors();
  return errors.empty() ? "" : errors[0];
}

TEST(ConfigErrors, AmbiguousNumbersAreRefusedWithTheWayToWriteThem) {
  EXPECT_NE(steps_error("010").find("'010' is octal to some readers and decimal to others; write 10"),
            std::string::npos);
  EXPECT_NE(steps_error("-007").find("write 7"), std::string::npos);
  for (const char* value : {"0x10", "0b11", "0o17", "1_000", "1:30", "yes", ".inf", "nan", "1e400", "1.5", "1e30",
                            "\"10\"", "[10]", "{a: 1}", "''"})
    EXPECT_NE(steps_error(value), "") << value;
  for (const char* value : {"1", "+7", "1e5", "2.0"}) EXPECT_EQ(steps_error(value), "") << value;
}

TEST(ConfigErrors, BooleansAreTrueAndFalseOnly) {
  for (const char* value : {"yes", "no", "on", "off", "True", "1", "'true'", "~"})
    EXPECT_FALSE(ConfigFile(std::string("data: {packing: ") + value + "}\n").errors().empty()) << value;
  EXPECT_TRUE(ConfigFile("data: {packing: true}\n").load().data.packing);
}

TEST(ConfigErrors, NumbersKeepTheirRange) {
  for (const char* text :
       {"train: {lr: 0}", "train: {lr: -1e-3}", "train: {betas: [0.9, 1.0]}", "train: {betas: [0.9]}",
        "train: {betas: 0.9}", "data: {seq_len: 1}", "data: {validation_fraction: 1.0}", "policy: {min_gap: 2}",
        "train: {resume: sometimes}", "train: {resume: 010}", "export: {shard_size: big}", "parallel: {tp: 0}",
        "train: {steps: 99999999999999999999}"})
    EXPECT_EQ(ConfigFile(std::string(text) + "\n").errors().size(), 1u) << text;
}

TEST(ConfigErrors, RulesBetweenKeysPointAtTheKeyThatWasGiven) {
  const ConfigFile file(
      "train:\n"
      "  steps: 10\n"
      "  warmup: 20\n"
      "  micro_batch: 8\n"
      "  global_batch: 12\n"
      "  lr: 1e-4\n"
      "  min_lr: 1e-3\n"
      "  loss: {distill_weight: 0}\n"
      "  act_scales: true\n"
      "quantize: {format: fp8, w4afp8_rounding: vllm}\n");
  const auto errors = file.errors();
  ASSERT_EQ(errors.size(), 6u);
  EXPECT_EQ(errors[0].substr(0, 14), "run.yaml:3:11:");
  EXPECT_EQ(errors[1], "run.yaml:5:17: train.global_batch 12 is not a multiple of train.micro_batch 8");
  EXPECT_EQ(errors[2], "run.yaml:7:11: train.min_lr 0.001 is above train.lr 0.0001");
  EXPECT_NE(errors[3].find("at least one must be above 0"), std::string::npos);
  EXPECT_NE(errors[4].find("act_scales needs quantize.format nvfp4"), std::string::npos);
  EXPECT_NE(errors[5].find("w4afp8"), std::string::npos);
}

TEST(ConfigErrors, RulesAboutARefusedValueStaySilent) {
  EXPECT_EQ(ConfigFile("train: {steps: many, warmup: 500}\n").errors().size(), 1u);
}

TEST(ConfigErrors, WhatIsNoYamlNamesTheLine) {
  EXPECT_EQ(ConfigFile("train:\n\tsteps: 5\n").errors()[0], "run.yaml:2:1: YAML cannot be indented with tabs");
  EXPECT_EQ(ConfigFile("train:\n  steps: [1\nmodel: 2\n").errors()[0].substr(0, 11), "run.yaml:3:");
  EXPECT_NE(ConfigFile("- a\n- b\n").errors()[0].find("a list of 2 is not a map of keys"), std::string::npos);
  EXPECT_NE(ConfigFile("train: {steps: 1}\n---\ntrain: {steps: 2}\n").errors()[0].find("second YAML document"),
            std::string::npos);
  EXPECT_NE(ConfigFile("train: {steps: !!int 5}\n").errors()[0].find("tag"), std::string::npos);
}

TEST(ConfigErrors, HostileFilesAreBounded) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c <= 'i'; ++c) {
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i) bomb += std::string(i ? ", *" : "*") + static_cast<char>(c - 1);
    bomb += "]\n";
  }
  EXPECT_NE(ConfigFile(bomb).errors()[0].find("more than 20000 values"), std::string::npos);
  EXPECT_NE(ConfigFile("a: " + std::string(100000, '[')).errors()[0].find("nested deeper"), std::string::npos);
  EXPECT_NE(ConfigFile("a: &a [*a]\n").errors()[0].find("alias"), std::string::npos);
  EXPECT_NE(ConfigFile("# " + std::string(1 << 20, 'x')).errors()[0].find("more than the 1048576"), std::string::npos);
  EXPECT_NE(ConfigFile(std::string("a: b\0c", 6)).errors()[0].find("zero byte"), std::string::npos);
}

TEST(ConfigErrors, FilesThatCannotBeReadAreNamed) {
  const auto message = [](const std::string& path) {
    try {
      load_config(path, {});
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("no/such/run.yaml"), "no/such/run.yaml: no such file");
  EXPECT_EQ(message("/tmp"), "/tmp: is a folder, a YAML file was expected");
}

TEST(ConfigErrors, OverridesAreNamedAsTyped) {
  const ConfigFile file("train: {steps: x}\n");
  EXPECT_EQ(file.errors({"train.stpes=5", "train.lr=0", "nothing", "train.loss.type=fkll"}),
            (Lines{
                "run.yaml:1:16: train.steps: 'x' is not a whole number (allowed: whole number, at least 1)",
                "-o train.stpes=5: unknown key 'train.stpes' (did you mean 'train.steps'?)",
                "-o train.lr=0: train.lr: 0 is out of range (allowed: number, above 0 and at most 1000000)",
                "-o nothing: an override is key.path=value, for example -o train.steps=100",
                "-o train.loss.type=fkll: train.loss.type: 'fkll' is not allowed, did you mean 'fkl'? (allowed: fkl, "
                "rkl, cakld, jsd)",
            }));
}

}  // namespace
}  // namespace scalewright
