// AngelSlim's files, key by key.
#include <gtest/gtest.h>

#include <fstream>

#include "config/mcore_qad_dialect.h"
#include "config_file.h"

namespace scalewright {
namespace {

/// A file with what it must have, and `backend` as the lines of compression.MCoreQAD (each indented by four).
std::string file_with(const std::string& backend, const std::string& name = "Qwen", const std::string& rest = "") {
  return "global:\n  save_path: out\nmodel:\n  name: " + name +
         "\n  model_path: some/model\ncompression:\n  name: MCoreQAD\n  MCoreQAD:\n    checkpoint_path: ckpt\n" +
         backend + rest;
}

TEST(McoreQad, EveryKeyOfTheDocumentIsTranslated) {
  const Config config = ConfigFile(
                            "global: {save_path: out/dir}\n"
                            "model: {name: Qwen, model_path: some/model}\n"
                            "compression:\n"
                            "  name: MCoreQAD\n"
                            "  MCoreQAD:\n"
                            "    checkpoint_path: ckpt\n"
                            "    checkpoint_conversion_cpu: true\n"
                            "    format: w4afp8\n"
                            "    init_scales_path: old/run\n"
                            "    lm_weight: 0.5\n"
                            "    distill_weight: 2.0\n"
                            "    distill_type: cakld\n"
                            "    distill_temperature: 1.5\n"
                            "    distill_topk: 32\n"
                            "    experts_only: true\n"
                            "    seq_len: 512\n"
                            "    micro_batch_size: 4\n"
                            "    train_iters: 77\n"
                            "    recompute: false\n"
                            "    save_every: 11\n"
                            "    parallel: {tensor_parallel: 2, pipeline_parallel: 1, expert_parallel: 8, "
                            "context_parallel: 4, sequence_parallel: true}\n"
                            "    optim: {lr: 1e-4, weight_decay: 0.1, betas: [0.8, 0.9], grad_clip: 0.5}\n"
                            "dataset: {name: TextDataset, data_path: d.jsonl}\n")
                            .load();
  EXPECT_EQ(config.dialect, "mcore_qad");
  EXPECT_EQ(config.output.path, "out/dir");
  EXPECT_EQ(config.output.style, "angelslim");
  EXPECT_EQ(config.model.path, "some/model");
  EXPECT_EQ(config.quantize.format, "w4afp8");
  EXPECT_EQ(config.quantize.numerics, "mcore_qad");
  EXPECT_EQ(config.quantize.init_scales, "old/run");
  EXPECT_TRUE(config.quantize.experts_only);
  EXPECT_EQ(config.train.loss.lm_weight, 0.5);
  EXPECT_EQ(config.train.loss.distill_weight, 2.0);
  EXPECT_EQ(config.train.loss.type, "cakld");
  EXPECT_EQ(config.train.loss.temperature, 1.5);
  EXPECT_EQ(config.train.loss.top_k, 32);
  EXPECT_FALSE(config.train.loss.tail);
  EXPECT_EQ(config.data.seq_len, 512);
  EXPECT_EQ(config.train.micro_batch, 4);
  EXPECT_EQ(config.train.steps, 77);
  EXPECT_FALSE(config.train.recompute);
  EXPECT_EQ(config.train.save_every, 11);
  EXPECT_EQ(config.parallel.tp, 2);
  EXPECT_EQ(config.parallel.ep, 8);
  EXPECT_EQ(config.parallel.cp, 4);
  EXPECT_EQ(config.parallel.pp, 1);
  EXPECT_TRUE(config.parallel.sp);
  EXPECT_EQ(config.train.lr, 1e-4);
  EXPECT_EQ(config.train.weight_decay, 0.1);
  EXPECT_EQ(config.train.beta1, 0.8);
  EXPECT_EQ(config.train.beta2, 0.9);
  EXPECT_EQ(config.train.clip, 0.5);
  EXPECT_EQ(config.data.train, std::vector<std::string>{"d.jsonl"});
  EXPECT_EQ(config.data.loss_on, "all");
}

TEST(McoreQad, DefaultsAreThePeers) {
  const Config config = ConfigFile(file_with("")).load();
  EXPECT_EQ(config.quantize.format, "nvfp4");
  EXPECT_EQ(config.train.loss.lm_weight, 1.0);
  EXPECT_EQ(config.train.loss.distill_weight, 0.0);
  EXPECT_EQ(config.train.lr, 2e-4);
  EXPECT_EQ(config.train.beta1, 0.9);
  EXPECT_EQ(config.train.beta2, 0.95);
  EXPECT_EQ(config.train.weight_decay, 0.0);
  EXPECT_EQ(config.train.clip, 1.0);
  EXPECT_EQ(config.train.schedule, "constant");
  EXPECT_TRUE(config.data.train.empty());
}

TEST(McoreQad, NullsAreDefaultsAndTheNameMayBeAList) {
  std::string text = file_with("    init_scales_path: null\n    distill_topk: ~\n", "Qwen", "dataset:\n");
  text.replace(text.find("name: MCoreQAD"), 14, "name: [MCoreQAD]");
  const Config config = ConfigFile(text).load();
  EXPECT_EQ(config.quantize.init_scales, "");
  EXPECT_EQ(config.train.loss.top_k, 0);
}

TEST(McoreQad, HyV3CountsAssistantSpans) {
  for (const char* name : {"hy_v3", "HYV3", "Hy3", "HunYuan-3"})
    EXPECT_EQ(ConfigFile(file_with("", name)).load().data.loss_on, "assistant") << name;
  for (const char* name : {"Qwen", "qwen3_moe"})
    EXPECT_EQ(ConfigFile(file_with("", name)).load().data.loss_on, "all") << name;
}

TEST(McoreQad, TheModelsOwnTypeBeatsTheName) {
  const auto folder = std::filesystem::temp_directory_path() / ("scalewright-hy-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"model_type": "hy_v3"})";
  std::string text = file_with("", "Qwen");
  text.replace(text.find("some/model"), 10, folder.string());
  EXPECT_EQ(ConfigFile(text).load().data.loss_on, "assistant");
  std::filesystem::remove_all(folder);
}

TEST(McoreQad, ErrorsUseTheFilesOwnNames) {
  const auto errors = ConfigFile(file_with("    train_itres: 5\n    lm_weight: much\n    optim: {betas: [0.9], "
                                           "learning_rate: 1}\n    format: nvfp5\n",
                                           "Qwen", "datasets:\n  name: x\n"))
                          .errors();
  ASSERT_EQ(errors.size(), 6u);
  EXPECT_EQ(errors[0],
            "run.yaml:10:5: unknown key 'compression.MCoreQAD.train_itres' (did you mean "
            "'compression.MCoreQAD.train_iters'?)");
  EXPECT_NE(errors[1].find("run.yaml:11:16: compression.MCoreQAD.lm_weight: 'much'"), std::string::npos);
  EXPECT_NE(errors[2].find("run.yaml:12:20: compression.MCoreQAD.optim.betas"), std::string::npos);
  EXPECT_NE(errors[3].find("unknown key 'compression.MCoreQAD.optim.learning_rate'"), std::string::npos);
  EXPECT_NE(errors[4].find("compression.MCoreQAD.format: 'nvfp5'"), std::string::npos);
  EXPECT_EQ(errors[5], "run.yaml:14:1: unknown key 'datasets' (did you mean 'dataset'?)");
}

TEST(McoreQad, OtherCompressionsAndMissingModelsAreRefused) {
  std::string other = file_with("");
  other.replace(other.find("name: MCoreQAD"), 14, "name: [MCoreQAD, PTQ]");
  EXPECT_NE(ConfigFile(other).errors().at(0).find("allowed: MCoreQAD"), std::string::npos);
  EXPECT_NE(ConfigFile("compression: {MCoreQAD: {}}\nmodel: {model_path: m}\n")
                .errors()
                .at(0)
                .find("compression.name is missing"),
            std::string::npos);
  EXPECT_NE(ConfigFile("compression: {name: MCoreQAD}\n").errors().at(0).find("model.model_path is missing"),
            std::string::npos);
}

TEST(McoreQad, APickleOfScalesIsRefusedWithTheReason) {
  for (const char* name : {"s.pt", "s.pkl", "s.pth", "s.bin"}) {
    const auto errors = ConfigFile(file_with(std::string("    init_scales_path: ") + name + "\n")).errors();
    ASSERT_EQ(errors.size(), 2u) << name;
    EXPECT_NE(errors[0].find("pickle"), std::string::npos);
    EXPECT_EQ(errors[1].substr(0, 5), "hint:");
  }
  EXPECT_EQ(ConfigFile(file_with("    init_scales_path: scales_rank0.safetensors\n")).load().quantize.init_scales,
            "scales_rank0.safetensors");
}

int notes_about(const Config& config, const std::string& word) {
  return static_cast<int>(std::count_if(config.notes.begin(), config.notes.end(),
                                        [&](const std::string& note) { return note.find(word) != std::string::npos; }));
}

TEST(McoreQad, WhatThePeerRefusesIsNotedOnce) {
  const Config config = ConfigFile(file_with("    seq_len: 100\n    distill_topk: 8\n    parallel: {tensor_parallel: "
                                             "2, pipeline_parallel: 2, context_parallel: 8}\n"))
                            .load();
  for (const char* word : {"pipeline_parallel above 1", "tensor_parallel without sequence_parallel", "seq_len 100",
                           "distill_topk with tensor_parallel"})
    EXPECT_EQ(notes_about(config, word), 1) << word;
  EXPECT_EQ(notes_about(ConfigFile(file_with("")).load(), "refuses"), 0);
}

TEST(McoreQad, OverridesUseOurKeys) { EXPECT_EQ(ConfigFile(file_with("")).load({"train.steps=3"}).train.steps, 3); }

TEST(McoreQad, ItsDumpIsAFileOfOursWithTheSameValues) {
  const Config config = ConfigFile(file_with("    seq_len: 100\n")).load();
  EXPECT_EQ(dump_config(ConfigFile(dump_config(config)).load()), dump_config(config));
}

}  // namespace
}  // namespace scalewright
