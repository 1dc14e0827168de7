#include "store/checkpoint.h"

#include <charconv>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "store/atomic_file.h"
#include "store/files.h"
#include "store/manifest.h"
#include "store/safetensors.h"

namespace scalewright {

namespace {

constexpr const char* kShardName = "shard_00000.safetensors";
constexpr const char* kLatestName = "LATEST";
constexpr std::string_view kStepPrefix = "step_";

at::Tensor contiguous_on_cpu(const at::Tensor& value) { return value.detach().to(at::kCPU).contiguous(); }

std::string hash_of(const at::Tensor& contiguous) {
  return hash_hex(std::span(static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()));
}

std::optional<int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, code] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  if (code != std::errc() || stop != end || step < 0) return std::nullopt;
  return name == fmt::format("{}{}", kStepPrefix, step) ? std::optional(step) : std::nullopt;   // no "step_007"
}

void write_step(const fs::path& folder, int64_t step, const Checkpoint& checkpoint) {
  Manifest manifest;
  manifest.step = step;
  manifest.state = checkpoint.state;
  std::vector<TensorSpec> specs;
  for (const auto& [name, value] : checkpoint.tensors) specs.push_back({name, value.scalar_type(), value.sizes().vec()});
  SafetensorsWriter writer(folder / kShardName, specs);
  for (const TensorSpec& spec : specs) {
    const at::Tensor value = contiguous_on_cpu(checkpoint.tensors.at(spec.name));
    // Hashed before it is written, so that the hash also covers the way to the disk.
    manifest.tensors[spec.name] = {dtype_name(spec.dtype), spec.shape, kShardName, hash_of(value)};
    writer.write(spec.name, value);
  }
  writer.finish();
  const SafetensorsFile written(folder / kShardName);
  manifest.shards[kShardName] = {written.file_size(), hash_hex(written.header_bytes())};
  write_manifest(folder / kManifestName, manifest);
}

/// Opens the shards that a manifest names and compares them with it, but for the tensors' bytes.
std::map<std::string, SafetensorsFile> open_shards(const fs::path& folder, const Manifest& manifest) {
  std::map<std::string, SafetensorsFile> shards;
  const std::string manifest_path = (folder / kManifestName).string();
  for (const auto& [name, record] : manifest.shards) {
    const fs::path path = safe_join(folder, name, manifest_path);
    std::error_code code;
    const auto size = fs::file_size(path, code);
    if (code) throw DataError(fmt::format("{}: the shard is missing", path.string()));
    if (size != record.bytes) throw DataError(fmt::format("{}: {} bytes, but the manifest says {}", path.string(), size, record.bytes));
    const SafetensorsFile shard(path);
    if (hash_hex(shard.header_bytes()) != record.header_hash) {
      throw DataError(fmt::format("{}: the header's hash differs from the manifest's: the file is damaged", path.string()));
    }
    for (const TensorEntry& entry : shard.entries()) {
      const auto found = manifest.tensors.find(entry.name);
      if (found == manifest.tensors.end() || found->second.shard != name) {
        throw DataError(fmt::format("{}: tensor {} is not in the manifest", path.string(), entry.name));
      }
    }
    shards.emplace(name, shard);
  }
  return shards;
}

/// Reads a step, checking everything, and gives each tensor's bytes to `take`.
template <typename Take>
Manifest read_step(const fs::path& folder, const Take& take) {
  Manifest manifest = read_manifest(folder / kManifestName);
  const auto shards = open_shards(folder, manifest);
  for (const auto& [name, record] : manifest.tensors) {
    const auto shard = shards.find(record.shard);
    const TensorEntry* entry = shard == shards.end() ? nullptr : shard->second.find(name);
    if (!entry) throw DataError(fmt::format("{}: tensor {} is in no shard", folder.string(), name));
    if (dtype_name(entry->dtype) != record.dtype || entry->shape != record.shape) {
      throw DataError(fmt::format("{}: tensor {} has another dtype or shape than the manifest says", shard->second.path().string(), name));
    }
    const std::string hash = take(shard->second, *entry);
    if (hash != record.hash) {
      throw DataError(fmt::format("{}: tensor {}: its hash is {}, but the manifest says {}: the file is damaged\n"
                                  "hint: resume from an earlier step", shard->second.path().string(), name, hash, record.hash));
    }
  }
  return manifest;
}

bool verifies(const fs::path& step_folder) {
  try {
    verify_checkpoint(step_folder);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

fs::path checkpoint_path(const fs::path& folder, int64_t step) { return folder / fmt::format("{}{}", kStepPrefix, step); }

void save_checkpoint(const fs::path& folder, int64_t step, const Checkpoint& checkpoint) {
  SW_CHECK(step >= 0, "step {}", step);
  const fs::path path = checkpoint_path(folder, step);
  publish_folder(path, [&](const fs::path& temporary) { write_step(temporary, step, checkpoint); });
  write_file_atomic(folder / kLatestName, path.filename().string() + "\n");
}

Checkpoint load_checkpoint(const fs::path& step_folder) {
  Checkpoint checkpoint;
  // Copies, since training writes into them and the mapping is read-only; hashed after the copy.
  Manifest manifest = read_step(step_folder, [&](const SafetensorsFile& shard, const TensorEntry& entry) {
    at::Tensor value = shard.tensor(entry.name).clone(at::MemoryFormat::Contiguous);
    std::string hash = hash_of(value);
    checkpoint.tensors.emplace(entry.name, std::move(value));
    return hash;
  });
  checkpoint.state = std::move(manifest.state);
  return checkpoint;
}

void verify_checkpoint(const fs::path& step_folder) {
  read_step(step_folder, [](const SafetensorsFile& shard, const TensorEntry& entry) { return hash_hex(shard.bytes(entry)); });
}

std::vector<int64_t> list_checkpoints(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const auto step = step_of_name(entry.path().filename().string());
    if (!step) continue;
    try {
      if (read_manifest(entry.path() / kManifestName).step == *step) steps.push_back(*step);
    } catch (const DataError&) {
      // A broken folder is not a checkpoint; loading it by name tells why.
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<int64_t> latest_checkpoint(const fs::path& folder) {
  std::vector<int64_t> steps = list_checkpoints(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (verifies(checkpoint_path(folder, *step))) return *step;
  }
  return std::nullopt;
}

std::string damaged_checkpoints(const fs::path& folder, std::optional<int64_t> known_good) {
  std::error_code code;
  std::map<int64_t, std::string> damaged;   // newer than the newest good one
  const int64_t good = known_good ? *known_good : latest_checkpoint(folder).value_or(-1);
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const auto step = step_of_name(entry.path().filename().string());
    if (!step || *step <= good) continue;
    try {
      verify_checkpoint(entry.path());
    } catch (const DataError& error) {
      damaged[*step] = error.what();
    }
  }
  if (damaged.empty()) return {};
  std::string text = good < 0 ? std::string("no checkpoint is whole") : fmt::format("step {} is taken, because newer checkpoints are damaged", good);
  for (const auto& [step, why] : damaged) text += fmt::format("\n  step {}: {}", step, why.substr(0, why.find('\n')));
  return text;
}

void prune_checkpoints(const fs::path& folder, int64_t keep_last, int64_t keep_every, const std::vector<int64_t>& pinned) {
  const std::vector<int64_t> steps = list_checkpoints(folder);
  const auto count = static_cast<int64_t>(steps.size());
  for (int64_t i = 0; i < count - std::max<int64_t>(keep_last, 0); ++i) {
    const int64_t step = steps[static_cast<std::size_t>(i)];
    const bool kept_by_every = keep_every > 0 && step % keep_every == 0;
    const bool kept_by_pin = std::find(pinned.begin(), pinned.end(), step) != pinned.end();
    if (!kept_by_every && !kept_by_pin) remove_folder(checkpoint_path(folder, step));
  }
  std::error_code code;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (is_temporary_name(entry.path().filename().string())) leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, code);
}

}  // namespace scalewright
