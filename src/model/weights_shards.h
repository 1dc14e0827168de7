// The safetensors files of a model folder, mapped, and held against their index.
#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "store/safetensors.h"

namespace scalewright {

/// A tensor and the mapped file that it lies in; valid as long as its Shards.
struct FileTensor {
  const SafetensorsFile* file;
  const TensorEntry* entry;
  std::span<const std::byte> bytes() const { return file->bytes(*entry); }
  at::Tensor view() const { return file->tensor(entry->name); }
  std::string file_name() const { return file->path().filename().string(); }
};

struct Shards {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::vector<FileTensor> tensors() const;
};

/// Opens model.safetensors, or else every file that model.safetensors.index.json names. Throws DataError: no weights, a malformed
/// index, missing or malformed shards, tensors that are not where the index says.
Shards open_shards(const std::filesystem::path& folder);

}  // namespace scalewright
