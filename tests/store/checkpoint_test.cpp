#include "store/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/rng.h"
#include "store/atomic_file.h"
#include "store/files.h"
#include "store/safetensors.h"
#include "temporary_folder.h"

namespace scalewright {
namespace {

Checkpoint sample(int64_t step) {
  Checkpoint checkpoint;
  const double value = static_cast<double>(step);
  checkpoint.tensors["alpha/layers.0.qkv"] = at::full({4, 3}, value, at::kFloat);
  checkpoint.tensors["adam.m/layers.0.qkv"] = at::arange(12, at::kDouble).reshape({4, 3}).mul(value);
  checkpoint.tensors["codes"] = at::arange(5, at::kByte);
  checkpoint.tensors["scale"] = at::full({}, value, at::kBFloat16);
  checkpoint.tensors["none"] = at::zeros({0, 7}, at::kFloat);
  checkpoint.state = {{"step", step}, {"best", 0.1 + value}, {"count", std::uint64_t{1} << 63}, {"text", "\u00e9\"\\"},
                      {"nested", {{"list", {1, -2, nullptr, true}}, {"empty", Json::object()}}}};
  return checkpoint;
}

void expect_equal(const Checkpoint& got, const Checkpoint& want) {
  EXPECT_EQ(got.state, want.state);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, tensor] : want.tensors) {
    ASSERT_TRUE(got.tensors.contains(name)) << name;
    EXPECT_EQ(got.tensors.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(got.tensors.at(name), tensor)) << name;
  }
}

TEST(Checkpoint, ComesBackWhole) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 7, sample(7));
  const Checkpoint loaded = load_checkpoint(checkpoint_path(folder.path(), 7));
  expect_equal(loaded, sample(7));
  loaded.tensors.at("codes").add_(1);   // its own memory, not the mapped file
  expect_equal(load_checkpoint(folder.path() / "step_7"), sample(7));
  EXPECT_EQ(folder.read("LATEST"), "step_7\n");
  EXPECT_NO_THROW(read_json(folder.path() / "step_7" / "manifest.json"));   // the manifest is plain JSON
}

TEST(Checkpoint, AStateOfAnyKindAndNoTensors) {
  const TemporaryFolder folder;
  for (const Json& state : {Json(), Json(1.5), Json("text"), Json::array({1, 2})}) {
    save_checkpoint(folder.path(), 0, {.tensors = {}, .state = state});   // replaces the one before
    EXPECT_EQ(load_checkpoint(folder.path() / "step_0").state, state);
  }
}

TEST(Checkpoint, DoublesKeepEveryBit) {
  const TemporaryFolder folder;
  const Philox random(3, 3);
  Json numbers = Json::array();
  for (int i = 0; i < 1000; ++i) numbers.push_back(random.normal(i) * std::pow(10.0, static_cast<double>(random.below(5000 + i, 600)) - 300));
  save_checkpoint(folder.path(), 1, {.tensors = {}, .state = numbers});
  EXPECT_EQ(load_checkpoint(folder.path() / "step_1").state, numbers);
}

TEST(Checkpoint, RefusesAStateThatJsonCannotHold) {
  const TemporaryFolder folder;
  EXPECT_THROW(save_checkpoint(folder.path(), 1, {.tensors = {}, .state = {{"best", std::nan("")}}}), BugError);
  EXPECT_EQ(folder.count(), 0u);
}

TEST(Checkpoint, SameContentGivesSameBytes) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path() / "a", 3, sample(3));
  save_checkpoint(folder.path() / "b", 3, sample(3));
  for (const char* name : {"manifest.json", "shard_00000.safetensors"}) {
    EXPECT_EQ(folder.read(fs::path("a/step_3") / name), folder.read(fs::path("b/step_3") / name)) << name;
  }
}

TEST(Checkpoint, ListsCompleteStepsOnlyAndFindsTheNewestGoodOne) {
  const TemporaryFolder folder;
  EXPECT_EQ(latest_checkpoint(folder.path() / "none"), std::nullopt);
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
  for (const int64_t step : {2, 10, 1}) save_checkpoint(folder.path(), step, sample(step));
  fs::create_directory(folder.path() / "step_11");                                                      // no manifest
  fs::copy(folder.path() / "step_10", folder.path() / "step_12", fs::copy_options::recursive);          // another step's
  fs::copy(folder.path() / "step_10", folder.path() / "step_010", fs::copy_options::recursive);
  fs::copy(folder.path() / "step_10", folder.path() / ".step_13.tmp-x", fs::copy_options::recursive);
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{1, 2, 10}));
  EXPECT_EQ(latest_checkpoint(folder.path()), 10);
  fs::remove(folder.path() / "step_10" / "shard_00000.safetensors");
  EXPECT_EQ(latest_checkpoint(folder.path()), 2);
}

TEST(Checkpoint, PruneKeepsTheNewestTheRegularAndThePinned) {
  const TemporaryFolder folder;
  for (int64_t step = 1; step <= 10; ++step) save_checkpoint(folder.path(), step, sample(step));
  fs::create_directory(folder.path() / ".step_11.tmp-dead");
  prune_checkpoints(folder.path(), 2, 4, {3, 99});
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{3, 4, 8, 9, 10}));
  EXPECT_EQ(folder.count(), 6u);   // five steps and LATEST
  prune_checkpoints(folder.path(), 20, 0, {});
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 5u);
}

/// Damages the file by `change`, expects the load to name it, and restores it.
template <typename Change>
void expect_detected(const TemporaryFolder& folder, const std::string& name, const std::string& what, const Change& change) {
  const std::string good = folder.read(name);
  std::string bad = good;
  change(bad);
  folder.write(name, bad);
  try {
    load_checkpoint(folder.path() / "step_5");
    ADD_FAILURE() << what << " of " << name << " was not detected";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find(fs::path(name).filename().string()), std::string::npos) << error.what();
  }
  EXPECT_EQ(latest_checkpoint(folder.path()), 4);   // the older one is taken instead
  folder.write(name, good);
}

TEST(CheckpointDamage, EveryFlippedBitIsDetected) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 4, sample(4));
  save_checkpoint(folder.path(), 5, sample(5));
  const Philox random(5, 1);
  for (int i = 0; i < 300; ++i) {
    const std::string name = i % 2 ? "step_5/manifest.json" : "step_5/shard_00000.safetensors";
    const std::uint64_t bit = random.below(i, folder.read(name).size() * 8);
    expect_detected(folder, name, fmt::format("flip of bit {}", bit), [&](std::string& bytes) { bytes[bit / 8] ^= static_cast<char>(1 << bit % 8); });
  }
  expect_equal(load_checkpoint(folder.path() / "step_5"), sample(5));
}

TEST(CheckpointDamage, EveryTruncationAndAppendedByteIsDetected) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 4, sample(4));
  save_checkpoint(folder.path(), 5, sample(5));
  for (const std::string name : {"step_5/manifest.json", "step_5/shard_00000.safetensors"}) {
    const std::size_t size = folder.read(name).size();
    for (std::size_t cut = 0; cut < size; cut += 1 + size / 60) {
      expect_detected(folder, name, fmt::format("truncation to {}", cut), [&](std::string& bytes) { bytes.resize(cut); });
    }
    expect_detected(folder, name, "an appended byte", [](std::string& bytes) { bytes += '\n'; });
  }
}

TEST(CheckpointDamage, ADamagedTensorIsNamed) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), 5, sample(5));
  const fs::path shard = folder.path() / "step_5" / "shard_00000.safetensors";
  std::string bytes = folder.read("step_5/shard_00000.safetensors");
  const SafetensorsFile file(shard);
  bytes[file.header_bytes().size() + file.find("codes")->begin + 2] ^= 1;
  folder.write("step_5/shard_00000.safetensors", bytes);
  try {
    load_checkpoint(folder.path() / "step_5");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("tensor codes"), std::string::npos) << error.what();
  }
}

/// Names of the store's failpoints, each failing at its k-th visit for k = 1, 2, ... until the save succeeds.
class FailpointSweep : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override {
    unsetenv("SCALEWRIGHT_FAILPOINTS");
    failpoint("none");
  }
  static void arm(const char* action, int visit) {
    setenv("SCALEWRIGHT_FAILPOINTS", fmt::format("{}={}@{}", GetParam(), action, visit).c_str(), 1);
  }
  /// The newest checkpoint is whole, and is the old one or the new one.
  static void expect_good(const fs::path& folder) {
    unsetenv("SCALEWRIGHT_FAILPOINTS");
    failpoint("none");
    const auto latest = latest_checkpoint(folder);
    ASSERT_TRUE(latest == 1 || latest == 2);
    expect_equal(load_checkpoint(checkpoint_path(folder, *latest)), sample(*latest));
    expect_equal(load_checkpoint(checkpoint_path(folder, 1)), sample(1));
  }
};

TEST_P(FailpointSweep, AnErrorAnywhereLeavesAGoodCheckpointAndNoLeftovers) {
  int failures = 0;
  for (int visit = 1;; ++visit) {
    ASSERT_LT(visit, 100);
    const TemporaryFolder folder;
    save_checkpoint(folder.path(), 1, sample(1));
    arm("error", visit);
    bool failed = false;
    try {
      save_checkpoint(folder.path(), 2, sample(2));
    } catch (const DiskError&) {
      failed = true;
    }
    expect_good(folder.path());
    for (const auto& entry : fs::directory_iterator(folder.path())) EXPECT_FALSE(is_temporary_name(entry.path().filename().string()));
    if (!failed) break;
    ++failures;
  }
  EXPECT_GE(failures, 3);   // shard, manifest and LATEST at least
}

TEST_P(FailpointSweep, AKillAnywhereLeavesAGoodCheckpointAndTheNextSaveCleansUp) {
  int kills = 0;
  for (int visit = 1;; ++visit) {
    ASSERT_LT(visit, 100);
    const TemporaryFolder folder;
    save_checkpoint(folder.path(), 1, sample(1));
    arm("kill", visit);
    const pid_t child = fork();
    if (child == 0) {
      std::freopen("/dev/null", "w", stderr);
      save_checkpoint(folder.path(), 2, sample(2));
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    expect_good(folder.path());
    save_checkpoint(folder.path(), 2, sample(2));
    EXPECT_EQ(folder.count(), 3u);   // two steps and LATEST
    expect_equal(load_checkpoint(folder.path() / "step_2"), sample(2));
    if (WIFEXITED(status)) break;
    ++kills;
  }
  EXPECT_GE(kills, 3);
}

INSTANTIATE_TEST_SUITE_P(Places, FailpointSweep, testing::Values("store.open", "store.write", "store.fsync", "store.rename"),
                         [](const auto& info) { return std::string(info.param).substr(6); });

}  // namespace
}  // namespace scalewright
