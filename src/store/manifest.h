// The manifest of a checkpoint: which tensor lies in which shard, with sizes and hashes, and the training state. Its first line
// carries the hash of all that follows, so that no bit of it can change unseen; the file is one JSON document all the same.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace scalewright {

inline constexpr const char* kManifestName = "manifest.json";

struct TensorRecord {
  std::string dtype;            // as in safetensors headers
  std::vector<int64_t> shape;   // of the whole tensor
  std::string shard;            // file name
  std::string hash;             // XXH3-128 of the bytes
};

struct ShardRecord {
  std::uint64_t bytes = 0;      // of the whole file
  std::string header_hash;      // XXH3-128 of all before the data section
};

struct Manifest {
  int64_t step = 0;
  Json state;
  std::map<std::string, TensorRecord> tensors;
  std::map<std::string, ShardRecord> shards;
};

/// Throws DiskError; BugError when the state holds a number that JSON cannot (NaN, infinity) or text that is not UTF-8.
void write_manifest(const std::filesystem::path& path, const Manifest& manifest);

/// Throws DataError when the file is missing, not a manifest, or not as it was written.
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace scalewright
