#include "store/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "store/atomic_file.h"

namespace scalewright {

namespace {

constexpr std::size_t kLongestName = 255;

/// Closes a descriptor at the end of a scope.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) close(value);
  }
};

/// Whether the last line of an open file was cut off (a crash while appending): then the next line must start on its own.
bool ends_inside_line(int descriptor) {
  struct stat info {};
  char last = '\n';
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return false;
  return pread(descriptor, &last, 1, info.st_size - 1) == 1 && last != '\n';
}

/// Swaps two names in one step. False where the file system cannot.
bool exchange(const fs::path& a, const fs::path& b) {
  if (syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP || errno == EXDEV) return false;
  throw disk_error("cannot replace", b, errno);
}

/// Gives the finished folder its name; an older one is swapped out, so that at every moment one of the two is there.
void put_in_place(const fs::path& finished, const fs::path& path) {
  if (!fs::exists(fs::symlink_status(path))) {
    rename_durably(finished, path);
    return;
  }
  failpoint("store.rename");
  std::error_code ignored;
  if (exchange(finished, path)) {
    sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
    fs::remove_all(finished, ignored);   // by now the older folder; what stays is removed by a later write
    return;
  }
  remove_folder(path);
  rename_durably(finished, path);
}

/// The blobs folder that a Hugging Face snapshot's links lead to: .../models--X/snapshots/REV -> .../models--X/blobs.
std::optional<fs::path> cache_blobs(const fs::path& real_folder) {
  if (real_folder.parent_path().filename() != "snapshots") return std::nullopt;
  return real_folder.parent_path().parent_path() / "blobs";
}

bool lies_within(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() && rest != path.end();
}

DataError bad_name(const std::string& source, const std::string& name, const std::string& why) {
  std::string shown = name.substr(0, 80);
  std::replace(shown.begin(), shown.end(), '\0', '?');
  return DataError(fmt::format("{}: refuses the file name \"{}\": {}", source, shown, why));
}

}  // namespace

void write_file_atomic(const fs::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

void append_line(const fs::path& path, std::string_view line, bool sync) {
  failpoint("store.open");
  const Descriptor file{open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)};
  if (file.value < 0) throw disk_error("cannot open", path, errno);
  const std::string text = fmt::format("{}{}\n", ends_inside_line(file.value) ? "\n" : "", line);
  write_all(file.value, std::as_bytes(std::span(text)), path);
  if (!sync) return;
  failpoint("store.fsync");
  if (fsync(file.value) != 0) throw disk_error("cannot sync", path, errno);
}

std::string read_file(const fs::path& path, std::size_t max_bytes) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0) throw DataError(fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno)));
  std::string contents;
  std::vector<char> chunk(1 << 16);
  while (true) {
    const ssize_t count = read(file.value, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
    if (count == 0) return contents;
    contents.append(chunk.data(), static_cast<std::size_t>(count));
    if (contents.size() > max_bytes) throw DataError(fmt::format("{}: larger than {} bytes", path.string(), max_bytes));
  }
}

void publish_folder(const fs::path& path, const std::function<void(const fs::path& temporary)>& fill) {
  const fs::path target = path.has_filename() ? path : path.parent_path();   // "folder/" has no file name
  const fs::path temporary = temporary_sibling(target);
  try {
    failpoint("store.open");
    if (target.has_parent_path()) fs::create_directories(target.parent_path());
    if (mkdir(temporary.c_str(), 0777) != 0) throw disk_error("cannot create", temporary, errno);
    fill(temporary);
    sync_tree(temporary);
    put_in_place(temporary, target);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw disk_error("cannot publish", target, error.code().value());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

void remove_folder(const fs::path& path) {
  const fs::path doomed = temporary_sibling(path);
  failpoint("store.rename");
  // A folder of a lower overlayfs layer (a container image) cannot be renamed: EXDEV. It is removed as it stands.
  const bool renamed = rename(path.c_str(), doomed.c_str()) == 0;
  if (!renamed && errno != EXDEV) throw disk_error("cannot remove", path, errno);
  std::error_code code;
  fs::remove_all(renamed ? doomed : path, code);
  if (code) throw disk_error("cannot remove", path, code.value());
}

fs::path safe_join(const fs::path& folder, const std::string& name, const std::string& source) {
  if (name.empty()) throw bad_name(source, name, "it is empty");
  if (name.size() > kLongestName) throw bad_name(source, name, fmt::format("it has more than {} bytes", kLongestName));
  if (name.find('\0') != std::string::npos) throw bad_name(source, name, "it holds a NUL byte");
  const fs::path relative(name);
  if (relative.is_absolute()) throw bad_name(source, name, "it is absolute");
  for (const auto& part : relative) {
    if (part == "..") throw bad_name(source, name, "it leads out of the folder");
  }
  if (relative.lexically_normal() == ".") throw bad_name(source, name, "it is the folder itself");

  const fs::path joined = folder / relative;
  if (fs::is_symlink(joined) && !fs::exists(joined)) throw bad_name(source, name, "it is a link to nowhere");
  const fs::path real_folder = fs::weakly_canonical(folder);
  const fs::path real = fs::weakly_canonical(joined);
  const auto blobs = cache_blobs(real_folder);
  if (lies_within(real, real_folder) || (blobs && lies_within(real, fs::weakly_canonical(*blobs)))) return joined;
  throw bad_name(source, name, fmt::format("it is a link out of the folder, to {}", real.string()));
}

std::uintmax_t free_space(const fs::path& path) {
  fs::path existing = fs::absolute(path);
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  std::error_code code;
  const auto space = fs::space(existing, code);
  if (code) throw disk_error("cannot ask for the free space of", existing, code.value());
  return space.available;
}

}  // namespace scalewright
