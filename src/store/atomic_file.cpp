#include "store/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <fmt/format.h>

#include "base/failpoint.h"
#include "base/hash.h"

namespace scalewright {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = ".tmp-";
constexpr std::size_t kLongestFileName = 255;

std::string host_tag() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return hash_hex(std::string_view(name)).substr(0, 8);
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

bool process_is_gone(std::string_view pid_text) {
  int pid = 0;
  const auto [end, code] = std::from_chars(pid_text.data(), pid_text.data() + pid_text.size(), pid);
  if (code != std::errc() || pid <= 0) return false;
  return kill(pid, 0) != 0 && errno == ESRCH;
}

/// Removes what killed writers of the same name left on this host.
void remove_leftovers(const fs::path& folder, const std::string& prefix) {
  std::error_code ignored;
  std::vector<fs::path> dead;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (process_is_gone(rest.substr(0, rest.find('-')))) dead.push_back(entry.path());
  }
  for (const auto& path : dead) fs::remove_all(path, ignored);
}

void sync_path(const fs::path& path, int flags) {
  failpoint("store.fsync");
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) throw disk_error("cannot open to sync", path, errno);
  int result;
  do {
    result = fsync(descriptor);
  } while (result != 0 && errno == EINTR);
  const int error_number = errno;
  close(descriptor);
  // Some file systems cannot sync a folder and say EINVAL; there is nothing more that we could do there.
  if (result != 0 && !(flags & O_DIRECTORY && error_number == EINVAL)) throw disk_error("cannot sync", path, error_number);
}

}  // namespace

DiskError disk_error(std::string_view operation, const fs::path& path, int error_number) {
  const std::string what = fmt::format("{} {}: {}", operation, path.string(), std::strerror(error_number));
  if (error_number == ENOSPC || error_number == EDQUOT) {
    return DiskError(fmt::format("disk full: {}\nhint: free space or choose another output folder", what));
  }
  return DiskError(what);
}

fs::path temporary_sibling(const fs::path& path) {
  static std::atomic<int> counter{0};
  const fs::path folder = parent_of(path);
  const std::string tail = fmt::format("{}-{}-{}", host_tag(), getpid(), counter++);
  std::string name = path.filename().string();
  name = name.substr(0, kLongestFileName - kMark.size() - tail.size() - 8);   // a long name still leaves room for the mark
  remove_leftovers(folder, fmt::format(".{}{}{}-", name, kMark, host_tag()));
  return folder / fmt::format(".{}{}{}", name, kMark, tail);
}

bool is_temporary_name(std::string_view name) { return name.starts_with(".") && name.find(kMark) != std::string_view::npos; }

void sync_folder(const fs::path& folder) { sync_path(folder, O_DIRECTORY); }

void sync_tree(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_symlink()) continue;
    if (entry.is_directory()) sync_tree(entry.path());
    if (entry.is_regular_file()) sync_path(entry.path(), 0);
  }
  sync_folder(folder);
}

void rename_durably(const fs::path& from, const fs::path& to) {
  failpoint("store.rename");
  if (rename(from.c_str(), to.c_str()) != 0) throw disk_error("cannot rename to", to, errno);
  sync_folder(parent_of(to));
}

void write_all(int descriptor, std::span<const std::byte> bytes, const fs::path& path) {
  failpoint("store.write");
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw disk_error("cannot write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), temporary_(temporary_sibling(path_)) {
  std::error_code error;
  const fs::file_status there = fs::status(path_, error);
  if (fs::exists(there) && !fs::is_regular_file(there))
    throw DiskError(fmt::format("{}: not a plain file (a device, a folder or a pipe); it is left as it is\nhint: name a new file", path_.string()));
  failpoint("store.open");
  descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw disk_error("cannot create", temporary_, errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) { write_all(descriptor_, bytes, path_); }

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void AtomicFile::commit() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0 && errno != EINTR) throw disk_error("cannot write", path_, errno);
  sync_path(temporary_, 0);
  rename_durably(temporary_, path_);
  temporary_.clear();
}

}  // namespace scalewright
