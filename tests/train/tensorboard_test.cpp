#include "train/tensorboard_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "store/files.h"
#include "train/metrics_writer.h"

namespace scalewright {
namespace {

class TensorBoardTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("tensorboard_{}_{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// The contents of the frames of an event file, each checked against its two checksums.
std::vector<std::string> frames(const std::string& file) {
  std::vector<std::string> contents;
  for (std::size_t at = 0; at < file.size();) {
    const std::string length_bytes = file.substr(at, 8);
    const std::size_t length = little_endian(length_bytes);
    EXPECT_EQ(little_endian(file.substr(at + 8, 4)), masked_crc32c(length_bytes));
    contents.push_back(file.substr(at + 12, length));
    EXPECT_EQ(little_endian(file.substr(at + 12 + length, 4)), masked_crc32c(contents.back()));
    at += 12 + length + 4;
  }
  return contents;
}

TEST(TensorBoard, Crc32cKnownAnswers) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);          // the check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(TensorBoard, ScalarEventBytes) {
  // wall_time 1.0 (09 fixed64), step 300 (10 varint ac02), summary (2a): value (0a): tag "loss" (0a), simple_value 0.5 (15 fixed32).
  EXPECT_EQ(hex(scalar_event(1.0, 300, {{"loss", 0.5}})), "09000000000000f03f" "10ac02" "2a0d" "0a0b" "0a046c6f7373" "150000003f");
}

TEST_F(TensorBoardTest, FramesAndSessionStart) {
  TensorBoardWriter writer(folder_, 7);
  writer.scalars(8, {{"a", 1}});
  const std::vector<std::string> events = frames(read_file(writer.path()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_NE(events[0].find("brain.Event:2"), std::string::npos);
  EXPECT_EQ(hex(events[1].substr(9)), "1008" "3a020801");   // step 8, session_log {status: START}
  EXPECT_NE(events[2].find("a"), std::string::npos);
}

TEST_F(TensorBoardTest, MetricsBeyondTheResumedStepAreDropped) {
  {
    MetricsWriter metrics(folder_, std::nullopt);
    for (int64_t step = 1; step <= 4; ++step) metrics.write("train", step, {{"loss", 1.0 / static_cast<double>(step)}, {"bad", std::nan("")}});
  }
  append_line(folder_ / "metrics.jsonl", "{\"kind\":\"train\",\"step\":5");  // torn
  MetricsWriter metrics(folder_, 2);
  metrics.write("validation", 3, {{"fkl", 0.25}});
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"),
            "{\"kind\":\"train\",\"step\":1,\"bad\":null,\"loss\":1.0}\n{\"kind\":\"train\",\"step\":2,\"bad\":null,\"loss\":0.5}\n"
            "{\"kind\":\"validation\",\"step\":3,\"fkl\":0.25}\n");
}

TEST_F(TensorBoardTest, AFreshRunStartsAnew) {
  MetricsWriter(folder_, std::nullopt).write("train", 9, {});
  MetricsWriter(folder_, std::nullopt);
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "");
}

}  // namespace
}  // namespace scalewright
