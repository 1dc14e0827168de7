// A training checkpoint: layout-free names and whole-tensor shapes in a manifest, tensors in safetensors shards, hashes, atomic
// publish. checkpoints/step_N/{manifest.json, shard_00000.safetensors}; checkpoints/LATEST names the newest.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/json.h"

namespace scalewright {

/// Everything a checkpoint holds: tensors by layout-free name ("alpha/layers.0.qkv", "adam.m/layers.0.qkv", ...) and a JSON state
/// (step, counters, sample index, hashes of config, data and tokenizer, best score, ...).
struct Checkpoint {
  std::map<std::string, at::Tensor> tensors;
  Json state;
};

/// Writes checkpoints/step_N under `folder` atomically (temporary folder, fsync, rename), then LATEST. Throws DiskError.
void save_checkpoint(const std::filesystem::path& folder, int64_t step, const Checkpoint& checkpoint);

/// Reads one step's checkpoint, verifying sizes and hashes. Throws DataError naming file and tensor.
Checkpoint load_checkpoint(const std::filesystem::path& step_folder);

/// Checks a step's sizes and hashes without keeping its tensors. Throws DataError naming file and tensor.
void verify_checkpoint(const std::filesystem::path& step_folder);

/// Steps present and complete (manifest readable), ascending. Temporary or broken folders are not listed.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& folder);

/// The newest step whose manifest and hashes verify, or nothing.
std::optional<int64_t> latest_checkpoint(const std::filesystem::path& folder);

/// What to warn of when the newest step is not taken because it is damaged: which, and why; empty when nothing is wrong.
/// `good`: the newest good step, where it is known already (it is then not read again).
std::string damaged_checkpoints(const std::filesystem::path& folder, std::optional<int64_t> good = std::nullopt);

/// Removes all but the newest `keep_last`, every step divisible by `keep_every` (0: none), and `pinned` steps; also leftovers of
/// interrupted writes.
void prune_checkpoints(const std::filesystem::path& folder, int64_t keep_last, int64_t keep_every, const std::vector<int64_t>& pinned);

/// folder / "step_N".
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);

}  // namespace scalewright
