// A temporary folder: prepared calibration rows live there while they are read.
#pragma once
#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace scalewright {

/// Removed with everything in it when destroyed. Throws DiskError.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "scalewright-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw DiskError(fmt::format("{}: cannot make a temporary folder: {}", name, std::strerror(errno)));
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace scalewright
