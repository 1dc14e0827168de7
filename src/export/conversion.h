// A model's weights as a reshardable checkpoint, and back to the very files that they came from.
#pragma once
#include <filesystem>
#include <string>

#include "base/log.h"
#include "comm/group.h"

namespace scalewright {

/// What a folder given as a weights checkpoint holds.
enum class CheckpointFolder {
  kMissing,    // nothing there, or an empty folder
  kOurs,       // written by model_to_checkpoint
  kModel,      // a Hugging Face folder
  kMegatron,   // a Megatron-Core checkpoint
  kOther,
};
CheckpointFolder look_at_checkpoint(const std::filesystem::path& folder);

/// The folder `model` as a checkpoint at `out` (new or empty): shard_NNNNN.safetensors of at most `shard_bytes` (a larger tensor has one to
/// itself) with whole tensors under layout-free names, a manifest with their shapes, dtypes and hashes, config.json, tokenizer and other
/// small files, and under source/ what makes the way back exact. The checkpoint is also a model folder of its own: every command reads
/// it. Rank r of `ranks` writes shards r, r+size, ...; all must call it, on one file system. Tensors stream one at a time. It appears
/// whole or not at all. Code and pickles are left behind, with a warning. Throws DataError, DiskError, UserError.
void model_to_checkpoint(const std::filesystem::path& model, const std::filesystem::path& out, int64_t shard_bytes, const Group& ranks, Log& log);

/// The way back: every file byte for byte as it was (but for what was left behind). Every tensor's hash is checked. Throws DataError naming
/// the damaged tensor.
void checkpoint_to_model(const std::filesystem::path& checkpoint, const std::filesystem::path& out, Log& log);

/// The checkpoint `path` of `model` for all ranks: converted by the first rank when it is not there yet, while the others wait. All ranks
/// must call it. Throws UserError when it is seen by some ranks only, or is a Megatron checkpoint, or something else.
void ensure_checkpoint(const std::filesystem::path& path, const std::filesystem::path& model, const Group& ranks, Log& log);

}  // namespace scalewright
