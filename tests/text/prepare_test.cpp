// The worker's client and the preparation of data, on the bundled model's tokenizer (whose template is ChatML).
#include "text/prepare.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "store/files.h"
#include "text/dataset.h"
#include "text/rows.h"
#include "text/token_shards.h"
#include "text/worker.h"
#include "text/worker_process.h"

namespace scalewright {
namespace {

const std::filesystem::path kModel = std::filesystem::path(SCALEWRIGHT_SOURCE) / "examples/tiny/fixture/model";
constexpr const char* kSample = R"({"messages": [{"role": "user", "content": "Reverse: v m p"}, {"role": "assistant", "content": "p m v"}]})";

class Prepare : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Run by hand, the test finds the project's interpreter where ./run puts it.
    const std::filesystem::path python = std::filesystem::path(SCALEWRIGHT_SOURCE) / ".venv/bin/python";
    if (std::getenv("SCALEWRIGHT_PYTHON") == nullptr && std::filesystem::exists(python)) setenv("SCALEWRIGHT_PYTHON", python.c_str(), 1);
  }
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("prepare_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    options_.seq_len = 64;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& contents) const {
    std::ofstream(folder_ / name, std::ios::binary) << contents;
    return (folder_ / name).string();
  }
  template <typename F>
  static std::string refusal(const F& f) {
    try {
      f();
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
  DataSection options_;
  Log log_{0, LogLevel::kError};
};

TEST_F(Prepare, CountsAndNamesWhatItDrops) {
  std::string lines = std::string(kSample) + "\n" + "{broken\n" + "\n" + R"({"messages": [{"role": "user", "content": "no answer"}]})" + "\n";
  lines += R"({"conversations": [{"from": "human", "value": "What is 2 + 5?"}, {"from": "gpt", "value": ")" + std::string(400, '7') + R"("}]})" + "\n";
  lines += R"({"messages": [{"role": "wizard", "content": "x"}]})" + std::string("\n") + "{\"text\": \"\xff\"}\n";
  const PrepareReport report = prepare_data(kModel, {write("data.jsonl", lines)}, options_, folder_ / "out", log_);
  EXPECT_EQ(report.lines, 6);
  EXPECT_EQ(report.rows, 2);
  EXPECT_EQ(report.bad, 3);
  EXPECT_EQ(report.without_target, 1);
  EXPECT_EQ(report.truncated, 1);
  ASSERT_EQ(report.bad_examples.size(), 3u);
  EXPECT_NE(report.bad_examples[0].find("data.jsonl:2: not JSON"), std::string::npos) << report.bad_examples[0];
  EXPECT_NE(report.bad_examples[1].find("data.jsonl:6: messages[0]: role is 'wizard'"), std::string::npos) << report.bad_examples[1];
  EXPECT_NE(report.bad_examples[2].find("data.jsonl:7: not UTF-8"), std::string::npos) << report.bad_examples[2];

  const auto rows = open_token_shards(folder_ / "out");
  ASSERT_EQ(rows->size(), 2);
  const Document document = rows->row(0).at(0);
  TextWorker worker(kModel);
  std::vector<std::int32_t> learned, all(document.ids.begin(), document.ids.end());
  for (std::size_t i = 0; i < document.ids.size(); ++i)
    if (document.is_target[i]) learned.push_back(document.ids[i]);
  EXPECT_EQ(learned.back(), 2) << "the stop token is learned, the newline after it is not";
  EXPECT_EQ(worker.decode({learned, all}), (std::vector<std::string>{"p m v", "user\nReverse: v m p\nassistant\np m v\n"}));
  EXPECT_EQ(worker.encode_text({"p m v"}).at(0), std::vector<std::int32_t>(learned.begin(), learned.end() - 1));
  EXPECT_EQ(worker.encode_prompts({Json::parse(R"([{"role": "user", "content": "Reverse: v m p"}])")}).at(0),
            std::vector<std::int32_t>(all.begin(), all.begin() + 22));
  EXPECT_EQ(rows->row(1).at(0).ids.size(), 64u);
}

TEST_F(Prepare, KeepsTheOrderWithSeveralWorkersAndReusesItsWork) {
  std::string lines;
  for (int i = 0; i < 1200; ++i) lines += fmt::format(R"({{"text": "row {}"}})", i) + "\n";
  const std::string file = write("data.jsonl", lines);
  options_.workers = 2;
  const PrepareReport report = prepare_data(kModel, {file}, options_, folder_ / "out", log_);
  const auto rows = open_token_shards(folder_ / "out");
  ASSERT_EQ(rows->size(), 1200);
  TextWorker worker(kModel);
  for (int64_t i : {0, 255, 256, 700, 1199}) EXPECT_EQ(worker.decode({rows->row(i).at(0).ids}).at(0), fmt::format("row {}", i));

  const auto written = std::filesystem::last_write_time(folder_ / "out/manifest.json");
  EXPECT_EQ(prepare_data(kModel, {file}, options_, folder_ / "out", log_).content_hash, report.content_hash);
  EXPECT_EQ(std::filesystem::last_write_time(folder_ / "out/manifest.json"), written) << "prepared again";
  options_.workers = 1;  // how many there are is no part of what the rows are, and each takes seconds to start
  options_.packing = true;
  EXPECT_LT(prepare_data(kModel, {file}, options_, folder_ / "out", log_).rows, 300);
  options_.packing = false;
  options_.max_samples = 100;
  EXPECT_EQ(prepare_data(kModel, {file}, options_, folder_ / "out", log_).rows, 100);
  EXPECT_NE(worker.decode({open_token_shards(folder_ / "out")->row(99).at(0).ids}).at(0), "row 99") << "the head of the file instead of a sample";
}

TEST_F(Prepare, RefusesWithReasons) {
  const auto prepare = [&](const std::string& file) { return refusal([&] { prepare_data(kModel, {file}, options_, folder_ / "out", log_); }); };
  EXPECT_NE(prepare(write("empty.jsonl", "")).find("empty.jsonl: no data"), std::string::npos);
  EXPECT_NE(prepare((folder_ / "missing.jsonl").string()).find("no such file"), std::string::npos);
  const std::string all_bad = prepare(write("bad.jsonl", "[1, 2]\n"));
  EXPECT_NE(all_bad.find("bad.jsonl:1: expected a JSON object, found a list"), std::string::npos) << all_bad;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out")) << "something half-written is left";

  std::filesystem::create_directories(folder_ / "bare");
  const std::string bare = refusal([&] { prepare_data(folder_ / "bare", {write("data.jsonl", kSample)}, options_, folder_ / "out", log_); });
  EXPECT_NE(bare.find("no tokenizer in"), std::string::npos) << bare;

  std::filesystem::create_directories(folder_ / "precious");
  write("precious/letter.txt", "dear");
  EXPECT_THROW(prepare_data(kModel, {write("data.jsonl", kSample)}, options_, folder_ / "precious", log_), UserError);
  EXPECT_EQ(read_file(folder_ / "precious/letter.txt"), "dear");
}

TEST_F(Prepare, OpenRowsPreparesOnceIntoTheCache) {
  const std::string file = write("data.jsonl", std::string(kSample) + "\n");
  const auto rows = open_rows(kModel, {file}, options_, folder_ / "cache", 512, log_);
  EXPECT_EQ(rows->size(), 1);
  const std::filesystem::path prepared = std::filesystem::directory_iterator(folder_ / "cache")->path();
  EXPECT_EQ(open_rows("", {prepared.string(), prepared.string()}, options_, folder_ / "cache", 512, log_)->size(), 2) << "needs no tokenizer";
  EXPECT_THROW(open_rows(kModel, {file}, options_, folder_ / "cache", 40, log_), DataError) << "a token beyond the vocabulary";
  EXPECT_EQ(open_rows(kModel, {}, options_, folder_ / "cache", 40, log_)->row(3).at(0).ids.size(), 64u);
}

// The process by itself, with a shell in place of Python.

const std::vector<std::string> kShellEnvironment = {"PATH=/usr/bin:/bin"};

TEST(WorkerProcess, ReportsItsDeathWithItsLastWords) {
  WorkerProcess process({"sh", "-c", "read line; echo it broke >&2; exit 5"}, kShellEnvironment, 10);
  try {
    process.exchange("hello");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("ended with status 5"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("it broke"), std::string::npos) << error.what();
  }
  EXPECT_THROW(WorkerProcess({"no-such-program-of-ours"}, kShellEnvironment, 10), DataError);
}

TEST(WorkerProcess, GivesUpOnSilence) {
  WorkerProcess process({"sleep", "60"}, kShellEnvironment, 0.2);
  EXPECT_THROW(process.exchange("hello"), DataError);
}

TEST(WorkerProcess, ExchangesMoreThanTheBuffersHold) {
  // cat answers while it is still being written to: neither side may wait for the other.
  WorkerProcess process({"cat"}, kShellEnvironment, 10);
  const std::string line(8 << 20, 'x');
  EXPECT_EQ(process.exchange(line), line);
  EXPECT_EQ(process.exchange("short"), "short");
}

}  // namespace
}  // namespace scalewright
