#include "app/inspection.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "store/checkpoint.h"
#include "store/files.h"
#include "text/token_shards.h"

namespace scalewright {
namespace {

class Inspection : public testing::Test {
 protected:
  Inspection() : folder_(fs::temp_directory_path() / fmt::format("scalewright_inspection_{}", getpid())) { fs::create_directories(folder_); }
  ~Inspection() override { fs::remove_all(folder_); }

  void save_step(const fs::path& folder, int64_t step) {
    save_checkpoint(folder, step, {.tensors = {{"alpha/layers.0.qkv", at::ones({4, 2})}, {"alpha/layers.1.qkv", at::ones({4, 2})}}, .state = {{"best", 0.5}}});
  }

  fs::path folder_;
};

TEST_F(Inspection, TellsACheckpoint) {
  save_step(folder_, 3);
  const OrderedJson document = inspect_path(folder_ / "step_3");
  EXPECT_EQ(document.at("kind"), "checkpoint");
  EXPECT_EQ(document.at("step"), 3);
  EXPECT_EQ(document.at("state").at("best"), 0.5);
  EXPECT_EQ(document.at("elements"), 16);
  EXPECT_EQ(document.at("bytes"), 64);
  EXPECT_EQ(inspect_path(folder_ / "step_3" / "manifest.json").at("tensors"), document.at("tensors"));
  EXPECT_NE(describe_inspection(document).find("alpha/layers.*.qkv       2  F32      [4, 2]"), std::string::npos) << describe_inspection(document);
}

TEST_F(Inspection, RefusesADamagedCheckpoint) {
  save_step(folder_, 3);
  append_line(folder_ / "step_3" / "shard_00000.safetensors", "x");
  EXPECT_THROW(inspect_path(folder_ / "step_3"), DataError);
}

TEST_F(Inspection, TellsAFolderOfCheckpointsAndARun) {
  save_step(folder_ / "checkpoints", 3);
  save_step(folder_ / "checkpoints", 12);
  const OrderedJson steps = inspect_path(folder_ / "checkpoints");
  EXPECT_EQ(steps.at("kind"), "checkpoints");
  EXPECT_EQ(steps.at("steps"), OrderedJson({3, 12}));
  EXPECT_EQ(steps.at("latest"), 12);

  append_line(folder_ / "metrics.jsonl", R"({"step": 1})");
  append_line(folder_ / "metrics.jsonl", R"({"step": 2})");
  fs::create_directory(folder_ / "scores");
  write_file_atomic(folder_ / "scores" / "bf16.json", R"({"average": 0.75})");
  const OrderedJson run = inspect_path(folder_);
  EXPECT_EQ(run.at("kind"), "run");
  EXPECT_EQ(run.at("checkpoints").at("latest"), 12);
  EXPECT_EQ(run.at("metrics"), (OrderedJson{{"lines", 2}, {"last", {{"step", 2}}}}));
  EXPECT_EQ(run.at("scores").at("bf16"), 0.75);
  EXPECT_TRUE(run.at("journal").is_null());
  EXPECT_NE(describe_inspection(run).find("checkpoints at steps [3,12]; newest good one: 12"), std::string::npos);
}

TEST_F(Inspection, TellsTokenShards) {
  TokenShardWriter writer(folder_);
  writer.add_row({{.ids = {1, 2, 3}, .is_target = {0, 1, 1}}});
  writer.finish({{"seq_len", 8}});
  const OrderedJson document = inspect_path(folder_);
  EXPECT_EQ(document.at("kind"), "token_shards");
  EXPECT_EQ(document.at("tokens"), 3);
  EXPECT_EQ(document.at("seq_len"), 8);
  EXPECT_NE(describe_inspection(document).find("tokens               3"), std::string::npos) << describe_inspection(document);
  fs::remove(folder_ / "shard_00000.safetensors");
  EXPECT_THROW(inspect_path(folder_), DataError);
}

TEST_F(Inspection, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(inspect_path(folder_), DataError);
  EXPECT_THROW(inspect_path(folder_ / "none"), DataError);
  write_file_atomic(folder_ / "text", "hello");
  EXPECT_THROW(inspect_path(folder_ / "text"), DataError);
}

}  // namespace
}  // namespace scalewright
