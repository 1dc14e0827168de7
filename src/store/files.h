// Files that are either whole or absent, and names that stay inside their folder.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace scalewright {

namespace fs = std::filesystem;

/// Writes `contents` to `path` by a temporary file beside it, fsync, rename, fsync of the folder. Throws DiskError.
void write_file_atomic(const fs::path& path, std::string_view contents);

/// Appends one line durably (journal, metrics): write of line + '\n' in one call, fsync when asked.
void append_line(const fs::path& path, std::string_view line, bool sync = false);

/// Reads a whole file. Throws DataError when missing, unreadable or larger than `max_bytes`.
std::string read_file(const fs::path& path, std::size_t max_bytes = std::size_t{1} << 30);

/// Makes a folder appear whole: `fill` writes into a temporary sibling, which is then synced and renamed to `path`; an existing
/// folder at `path` is replaced only after `fill` succeeded. On an exception the temporary folder is removed.
void publish_folder(const fs::path& path, const std::function<void(const fs::path& temporary)>& fill);

/// Removes a folder such that a crash on the way leaves a temporary name, never half of it under its own. Throws DiskError.
void remove_folder(const fs::path& path);

/// `folder / name` for a name that came from a file: refuses absolute names, "..", NUL, over 255 bytes, and symbolic links that
/// lead out of the folder. Throws DataError naming `source`. Symbolic links inside a Hugging Face cache (snapshots -> ../../blobs)
/// are allowed when `folder` itself lies in such a cache.
fs::path safe_join(const fs::path& folder, const std::string& name, const std::string& source);

/// Free bytes of the file system that holds `path` (or its nearest existing parent).
std::uintmax_t free_space(const fs::path& path);

}  // namespace scalewright
