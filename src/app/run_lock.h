// One job at a time in a run directory.
#pragma once
#include <filesystem>

namespace scalewright {

/// Creates the folder and holds a lock on <folder>/.lock until destroyed (or the process ends, however it ends). Throws UserError
/// naming the process that holds it, DiskError when the folder cannot be written.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace scalewright
