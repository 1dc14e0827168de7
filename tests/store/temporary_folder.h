// A folder for one test's files, removed at its end.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace scalewright {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int count = 0;
    path_ = base() / ("scalewright_store_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }
  std::string read(const std::filesystem::path& relative) const {
    std::ifstream stream(path_ / relative, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  /// Entries of the folder, hidden ones too.
  std::size_t count() const { return std::distance(std::filesystem::directory_iterator(path_), {}); }

 private:
  /// In memory where that is possible: hundreds of checkpoints, each with a dozen fsyncs, would take seconds on a disk.
  static std::filesystem::path base() {
    const bool in_memory = !std::getenv("TMPDIR") && access("/dev/shm", W_OK) == 0;
    return in_memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
  }

  std::filesystem::path path_;
};

}  // namespace scalewright
