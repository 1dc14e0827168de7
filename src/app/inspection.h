// What lies at a path: a safetensors file, a model or export, prepared token shards, a checkpoint, or a run directory.
#pragma once
#include <filesystem>
#include <string>

#include "base/json.h"

namespace scalewright {

/// One document; its "kind" is safetensors, model, token_shards, checkpoint, checkpoints or run. Headers and manifests are read and
/// checked, a checkpoint's hashes too. Throws DataError (nothing known lies there, or it is damaged).
OrderedJson inspect_path(const std::filesystem::path& path);

/// The document as text for people, with tensors that differ only in numbers of their names on one line.
std::string describe_inspection(const OrderedJson& document);

}  // namespace scalewright
