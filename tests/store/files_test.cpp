#include "store/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

#include "base/error.h"
#include "store/atomic_file.h"
#include "temporary_folder.h"

namespace scalewright {
namespace {

template <typename E, typename Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "accepted";
}

/// The exit code of `body` in a child process.
template <typename Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Files, WriteReplacesAndReadGivesBack) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  const std::string binary("a\0b\n\xff", 5);
  write_file_atomic(path, binary);
  EXPECT_EQ(read_file(path), binary);
  write_file_atomic(path, "");
  EXPECT_EQ(read_file(path), "");
  write_file_atomic(folder.path() / std::string(255, 'n'), "longest name");
  EXPECT_EQ(folder.count(), 2u);   // no temporary file stays
}

TEST(Files, FailuresNameThePath) {
  const TemporaryFolder folder;
  EXPECT_NE(refusal<DiskError>([&] { write_file_atomic(folder.path() / "no" / "a", "x"); }).find("No such file"), std::string::npos);
  EXPECT_NE(refusal<DiskError>([&] { write_file_atomic(folder.path(), "x"); }).find(folder.path().string()), std::string::npos);
  EXPECT_NE(refusal<DataError>([&] { read_file(folder.path() / "none"); }).find("none: cannot be opened"), std::string::npos);
  EXPECT_THROW(read_file(folder.path()), DataError);
  folder.write("big", std::string(1000, 'x'));
  EXPECT_THROW(read_file(folder.path() / "big", 999), DataError);
  EXPECT_EQ(read_file(folder.path() / "big", 1000).size(), 1000u);
}

TEST(Files, AFullDiskIsCalledThat) {
  // Writing to /dev/full fails with ENOSPC.
  const std::string message = refusal<DiskError>([] { append_line("/dev/full", "x"); });
  EXPECT_TRUE(message.starts_with("disk full: cannot write /dev/full")) << message;
  EXPECT_NE(message.find("hint:"), std::string::npos);
}

TEST(Files, AShortWriteAtALimitLeavesTheOldFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.write("a", "old");
  // The kernel writes the first 1000 bytes (a short write), then fails with EFBIG.
  const int code = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    return refusal<DiskError>([&] { write_file_atomic(path, std::string(5000, 'x')); }).find("File too large") != std::string::npos ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(Files, WritesGoOnAfterShortWritesAndSignals) {
  // A pipe takes 64 kB at a time, and a timer interrupts the writer all along.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text(3'000'000, 'y');
  const pid_t writer = fork();
  if (writer == 0) {
    close(ends[0]);
    struct sigaction action {};
    action.sa_handler = [](int) {};   // without SA_RESTART: write returns EINTR
    sigaction(SIGALRM, &action, nullptr);
    const itimerval timer{{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &timer, nullptr);
    write_all(ends[1], std::as_bytes(std::span(text)), "pipe");
    _exit(0);
  }
  close(ends[1]);
  std::size_t total = 0;
  std::array<char, 5000> buffer;
  for (ssize_t n; (n = read(ends[0], buffer.data(), buffer.size())) > 0;) total += static_cast<std::size_t>(n);
  close(ends[0]);
  int status = 1;
  waitpid(writer, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(total, text.size());
}

TEST(Files, LeftoversOfDeadWritersAreRemovedAndThoseOfLivingOnesKept) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  EXPECT_EQ(in_child([&] {
    std::ofstream(temporary_sibling(path)) << "half";   // a writer that dies here
    return 0;
  }), 0);
  EXPECT_EQ(folder.count(), 1u);
  const fs::path living = temporary_sibling(path);
  std::ofstream(living) << "half";
  write_file_atomic(path, "x");
  EXPECT_EQ(folder.count(), 2u);
  EXPECT_TRUE(fs::exists(living));
  EXPECT_TRUE(is_temporary_name(living.filename().string()));
  EXPECT_FALSE(is_temporary_name("a"));
}

TEST(Files, AppendedLinesFollowOneAnother) {
  const TemporaryFolder folder;
  append_line(folder.path() / "journal", "one");
  append_line(folder.path() / "journal", "two", true);
  EXPECT_EQ(folder.read("journal"), "one\ntwo\n");
  folder.write("torn", "whole\nhal");   // a crash cut the last line off: the next one starts on its own
  append_line(folder.path() / "torn", "next");
  EXPECT_EQ(folder.read("torn"), "whole\nhal\nnext\n");
}

TEST(PublishFolder, AppearsWholeAndReplaces) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "made" / "out";
  for (const char* text : {"first", "second"}) {
    publish_folder(path, [&](const fs::path& temporary) {
      fs::create_directories(temporary / "sub");
      write_file_atomic(temporary / "sub" / text, text);
      EXPECT_EQ(fs::exists(path / "sub" / "first"), std::string_view(text) == "second");   // the old one stays to the end
    });
  }
  EXPECT_FALSE(fs::exists(path / "sub" / "first"));
  EXPECT_EQ(read_file(path / "sub" / "second"), "second");
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), {}), 1);
}

TEST(PublishFolder, AFailureLeavesTheOldOne) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "out");
  folder.write("out/old", "old");
  EXPECT_THROW(publish_folder(folder.path() / "out", [](const fs::path& temporary) {
    std::ofstream(temporary / "half") << "half";
    throw DataError("stop");
  }), DataError);
  EXPECT_EQ(folder.read("out/old"), "old");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(RemoveFolder, TakesItsContentsAndNothingElse) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "out" / "sub");
  folder.write("out/sub/a", "x");
  folder.write("beside", "x");
  remove_folder(folder.path() / "out");
  EXPECT_EQ(folder.count(), 1u);
  EXPECT_NE(refusal<DiskError>([&] { remove_folder(folder.path() / "out"); }).find("No such file"), std::string::npos);
}

TEST(SafeJoin, AcceptsNamesInside) {
  const TemporaryFolder folder;
  EXPECT_EQ(safe_join(folder.path(), "a.safetensors", "index"), folder.path() / "a.safetensors");
  EXPECT_EQ(safe_join(folder.path(), "sub/a", "index"), folder.path() / "sub/a");
  EXPECT_EQ(safe_join(folder.path(), "..a..", "index"), folder.path() / "..a..");
  folder.write("real", "x");
  fs::create_symlink("real", folder.path() / "link");
  EXPECT_EQ(safe_join(folder.path(), "link", "index"), folder.path() / "link");
}

TEST(SafeJoin, RefusesNamesThatLeadOut) {
  const TemporaryFolder folder, outside;
  outside.write("secret", "x");
  fs::create_symlink(outside.path() / "secret", folder.path() / "link");
  fs::create_symlink(outside.path(), folder.path() / "linked");
  fs::create_symlink("/nonexistent/target", folder.path() / "dangling");
  for (const std::string& name : {std::string(""), std::string("."), std::string("../a"), std::string("a/../../b"), std::string("a/.."),
                                  std::string("/etc/passwd"), std::string("a\0b", 3), std::string(256, 'x'), std::string("link"),
                                  std::string("linked/secret"), std::string("linked/new"), std::string("dangling")}) {
    const std::string message = refusal<DataError>([&] { safe_join(folder.path(), name, "index.json"); });
    EXPECT_TRUE(message.starts_with("index.json: refuses the file name")) << name << ": " << message;
  }
}

TEST(SafeJoin, FollowsTheLinksOfAHuggingFaceCache) {
  const TemporaryFolder folder;
  const fs::path cache = folder.path() / "models--a--b";
  fs::create_directories(cache / "snapshots" / "rev");
  fs::create_directories(cache / "blobs");
  std::ofstream(cache / "blobs" / "abc") << "x";
  std::ofstream(folder.path() / "outside") << "x";
  fs::create_symlink("../../blobs/abc", cache / "snapshots" / "rev" / "model.safetensors");
  fs::create_symlink("../../../outside", cache / "snapshots" / "rev" / "bad");
  EXPECT_EQ(read_file(safe_join(cache / "snapshots" / "rev", "model.safetensors", "index")), "x");
  EXPECT_THROW(safe_join(cache / "snapshots" / "rev", "bad", "index"), DataError);
}

TEST(FreeSpace, AsksTheNearestExistingParent) {
  const TemporaryFolder folder;
  EXPECT_GT(free_space(folder.path()), 0u);
  EXPECT_GT(free_space(folder.path() / "not" / "yet" / "there"), 0u);
  EXPECT_GT(free_space("relative/path/that/is/not"), 0u);
}

}  // namespace
}  // namespace scalewright
