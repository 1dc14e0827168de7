#include "app/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"

namespace scalewright {

RunLock::RunLock(const std::filesystem::path& folder) {
  if (folder.empty()) throw UserError("output.path is missing\nhint: output: {path: FOLDER} in the configuration, where the run is written");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path path = folder / ".lock";
  descriptor_ = error ? -1 : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw DiskError(fmt::format("{}: the run directory cannot be written: {}", folder.string(), error ? error.message() : std::strerror(errno)));
  char holder[256] = {};
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const ssize_t n = ::pread(descriptor_, holder, sizeof holder - 1, 0);
    ::close(descriptor_);
    throw UserError(fmt::format("{}: another job works in this run directory ({})\nhint: wait for it, or give another output.path", folder.string(),
                                n > 0 ? std::string(holder, static_cast<std::size_t>(n)) : std::string("unknown process")));
  }
  char host[128] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string me = fmt::format("process {} on {}", ::getpid(), host);
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, me.data(), me.size(), 0) < 0)
    throw DiskError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
}

RunLock::~RunLock() { ::close(descriptor_); }

}  // namespace scalewright
