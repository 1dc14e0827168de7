#include "model/weights_shards.h"

#include <set>

#include "base/error.h"
#include "base/json.h"
#include "model/listing.h"
#include "store/files.h"

namespace scalewright {

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";

using WeightMap = std::map<std::string, std::string>;

[[noreturn]] void no_weights(const fs::path& folder) {
  bool pickled = false;
  for (const auto& entry : fs::directory_iterator(folder)) pickled = pickled || entry.path().extension() == ".bin";
  throw DataError(fmt::format("{}: neither {} nor {} is there\nhint: {}", folder.string(), kSingle, kIndex,
                              pickled ? "the .bin files are pickles, which are not read: save the model again with safetensors"
                                      : "is the download complete?"));
}

WeightMap read_index(const fs::path& path) {
  const Json index = read_json(path);
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (found == index.end() || !found->is_object() || found->empty()) {
    throw DataError(fmt::format("{}: no weight_map; expected an object from tensor names to shard files", path.string()));
  }
  WeightMap map;
  for (const auto& item : found->items()) {
    if (!item.value().is_string()) throw DataError(fmt::format("{}: the shard of {} is not a string", path.string(), item.key()));
    const std::string shard = item.value().get<std::string>();
    if (!shard.ends_with(".safetensors")) {
      throw DataError(fmt::format("{}: {} is said to be in {}; expected a .safetensors file", path.string(), item.key(), shard));
    }
    map.emplace(item.key(), shard);
  }
  return map;
}

/// Where the shards lie; throws with all that are missing.
std::map<std::string, fs::path> locate_shards(const fs::path& folder, const fs::path& index, const WeightMap& map) {
  std::map<std::string, fs::path> paths;
  std::vector<std::string> missing;
  for (const auto& [tensor, shard] : map) {
    if (paths.contains(shard)) continue;
    const fs::path path = safe_join(folder, shard, index.string());
    paths.emplace(shard, path);
    if (!fs::exists(path)) missing.push_back(fmt::format("{} (with {})", shard, tensor));
  }
  if (!missing.empty()) {
    throw DataError(fmt::format("{}: the index names shards that are not there\n{}hint: is the download complete?", folder.string(),
                                listing("missing", missing)));
  }
  return paths;
}

void check_against_index(const fs::path& index, const WeightMap& map, const std::map<std::string, const SafetensorsFile*>& opened) {
  std::map<std::string, std::string> actual;   // tensor -> shard
  std::vector<std::string> twice, unlisted, misplaced, absent;
  for (const auto& [shard, file] : opened) {
    for (const TensorEntry& entry : file->entries()) {
      const auto [place, first] = actual.emplace(entry.name, shard);
      if (!first) twice.push_back(fmt::format("{} (in {} and in {})", entry.name, place->second, shard));
      if (!map.contains(entry.name)) unlisted.push_back(fmt::format("{} (in {})", entry.name, shard));
    }
  }
  for (const auto& [tensor, shard] : map) {
    const auto place = actual.find(tensor);
    if (place == actual.end()) absent.push_back(fmt::format("{} (should be in {})", tensor, shard));
    else if (!opened.at(shard)->find(tensor)) misplaced.push_back(fmt::format("{} (should be in {}, is in {})", tensor, shard, place->second));
  }
  if (twice.empty() && unlisted.empty() && misplaced.empty() && absent.empty()) return;
  throw DataError(fmt::format("{}: the shards do not hold what the index says\n{}{}{}{}hint: the files are of different versions; download all again",
                              index.string(), listing("in two shards", twice), listing("in no shard", absent),
                              listing("in the wrong shard", misplaced), listing("not in the index", unlisted)));
}

}  // namespace

std::vector<FileTensor> Shards::tensors() const {
  std::vector<FileTensor> all;
  for (const auto& file : files) {
    for (const TensorEntry& entry : file->entries()) all.push_back({file.get(), &entry});
  }
  return all;
}

Shards open_shards(const fs::path& folder) {
  Shards shards;
  if (fs::exists(folder / kSingle)) {   // as in transformers, the single file wins over an index
    shards.files.push_back(std::make_unique<SafetensorsFile>(folder / kSingle));
    return shards;
  }
  const fs::path index = folder / kIndex;
  if (!fs::exists(index)) no_weights(folder);
  const WeightMap map = read_index(index);
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [shard, path] : locate_shards(folder, index, map)) {
    shards.files.push_back(std::make_unique<SafetensorsFile>(path));
    opened.emplace(shard, shards.files.back().get());
  }
  check_against_index(index, map, opened);
  return shards;
}

}  // namespace scalewright
