#include "base/log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace scalewright {
namespace {

template <typename Body>
std::string on_stderr(const Body& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

std::string contents_of(const std::string& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(Log, ShowsWhatItsRankAndLevelAllow) {
  const std::string first = on_stderr([] {
    Log log;
    log.debug("a");
    log.info("b {}", 1);
    log.warning("c");
    log.error("d");
  });
  EXPECT_EQ(first, "b 1\nwarning: c\nerror: d\n");
  const std::string other = on_stderr([] {
    Log log(3);
    log.info("b");
    log.warning("c");
  });
  EXPECT_EQ(other, "[rank 3] warning: c\n");
  EXPECT_EQ(on_stderr([] { Log(0, LogLevel::kDebug).debug("a"); }), "debug: a\n");
}

TEST(Log, FilesGetEveryLineWithItsTime) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / "log_test.log").string();
  std::filesystem::remove(path);
  for (int run = 0; run < 2; ++run) {
    Log log(1);
    log.add_file(path);
    log.info("kept {}", run);
  }
  const std::string text = contents_of(path);
  EXPECT_NE(text.find(" [rank 1] kept 0\n"), std::string::npos);
  EXPECT_NE(text.find(" [rank 1] kept 1\n"), std::string::npos);   // appended, not replaced
  std::filesystem::remove(path);
  Log log;
  EXPECT_THROW(log.add_file("/nonexistent/folder/file"), DiskError);
}

TEST(Log, LinesOfThreadsDoNotMix) {
  const std::string text = on_stderr([] {
    Log log;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < 100; ++i) log.info("{}", std::string(50, static_cast<char>('a' + t)));
      });
    }
    for (auto& thread : threads) thread.join();
  });
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_EQ(line, std::string(50, line.empty() ? '?' : line[0]));
  EXPECT_EQ(count, 400);
}

}  // namespace
}  // namespace scalewright
