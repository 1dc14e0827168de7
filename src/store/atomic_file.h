// A file being written beside its final name: whole or absent.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace scalewright {

/// What the system said about a failed operation on `path`; a full disk or quota is called that, with a hint.
DiskError disk_error(std::string_view operation, const std::filesystem::path& path, int error_number);

/// A name beside `path` that no other process uses: ".NAME.tmp-HOST-PID-N". Siblings of the same kind left by processes of this
/// host that are gone are removed first.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

/// Whether a file name was made by temporary_sibling.
bool is_temporary_name(std::string_view name);

/// Makes the names in a folder durable.
void sync_folder(const std::filesystem::path& folder);

/// Makes everything below `folder` durable: contents, then names.
void sync_tree(const std::filesystem::path& folder);

/// rename(2), then makes the folder's names durable.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Writes to a temporary sibling; `commit` makes it durable and gives it its name, replacing an older file in one step (whoever
/// has the older one mapped keeps it). Without commit nothing remains. Errors: DiskError.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

/// write(2) until all is written; interruptions and short writes are continued.
void write_all(int descriptor, std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace scalewright
