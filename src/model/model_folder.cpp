// Finding config.json: a plain folder, or a Hugging Face cache folder (models--org--name/{refs,snapshots}).
#include "base/error.h"
#include "model/config.h"
#include "store/files.h"

namespace scalewright {

namespace {

/// snapshots/<the revision in refs/main>, if both are there.
std::optional<fs::path> main_snapshot(const fs::path& cache) {
  const fs::path reference = cache / "refs" / "main";
  if (!fs::is_regular_file(reference)) return std::nullopt;
  std::string revision = read_file(reference, 4096);
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back()))) revision.pop_back();
  if (revision.empty()) return std::nullopt;
  const fs::path snapshot = safe_join(cache / "snapshots", revision, reference.string());
  return fs::exists(snapshot / "config.json") ? std::optional(snapshot) : std::nullopt;
}

std::optional<fs::path> newest_snapshot(const fs::path& cache) {
  std::optional<fs::path> newest;
  fs::file_time_type time;
  for (const auto& entry : fs::directory_iterator(cache / "snapshots")) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    const auto written = fs::last_write_time(entry.path());
    // Ties go to the greater name, so that the choice does not depend on the order of the directory.
    if (!newest || written > time || (written == time && entry.path() > *newest)) {
      newest = entry.path();
      time = written;
    }
  }
  return newest;
}

}  // namespace

fs::path resolve_model_folder(const fs::path& path) {
  if (!fs::exists(path)) throw DataError(fmt::format("{}: no such folder; expected a Hugging Face model", path.string()));
  if (!fs::is_directory(path)) {
    throw DataError(fmt::format("{}: not a folder; expected a Hugging Face model\nhint: give the folder that holds config.json", path.string()));
  }
  if (fs::exists(path / "config.json")) return path;
  const fs::path cache = path.filename() == "snapshots" ? path.parent_path() : path;
  if (fs::is_directory(cache / "snapshots")) {
    if (const auto snapshot = main_snapshot(cache)) return *snapshot;
    if (const auto snapshot = newest_snapshot(cache)) return *snapshot;
    throw DataError(fmt::format("{}: no snapshot holds a config.json\nhint: download the model again", (cache / "snapshots").string()));
  }
  throw DataError(fmt::format("{}: no config.json; expected a Hugging Face model folder or a cache folder with snapshots/", path.string()));
}

}  // namespace scalewright
