#include "export/conversion.h"

#include <fcntl.h>

#include <numeric>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/json.h"
#include "model/config.h"
#include "model/weights_shards.h"
#include "store/atomic_file.h"
#include "store/files.h"
#include "store/manifest.h"
#include "store/safetensors.h"

namespace scalewright {

namespace {

constexpr const char* kKind = "model weights";
constexpr const char* kSource = "source";   // folder of what the way back needs beside tensors
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr int64_t kDefaultShardBytes = 5'000'000'000;

std::string weights_shard_name(std::size_t index) { return fmt::format("shard_{:05}.safetensors", index); }

bool is_code_or_pickle(const fs::path& file) {
  const std::string extension = file.extension().string();
  return std::set<std::string>{".py", ".pyc", ".so", ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".msgpack", ".h5"}.count(extension) > 0;
}

/// Names of the files beside the weights, in order; code and pickles apart.
std::pair<std::vector<std::string>, std::vector<std::string>> side_files(const fs::path& model) {
  std::vector<std::string> kept, left;
  for (const auto& entry : fs::directory_iterator(model)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name.ends_with(".safetensors") || name == kIndexName || is_temporary_name(name)) continue;
    (is_code_or_pickle(entry.path()) ? left : kept).push_back(name);
  }
  std::sort(kept.begin(), kept.end());
  std::sort(left.begin(), left.end());
  return {kept, left};
}

std::vector<std::vector<FileTensor>> group_by_size(std::vector<FileTensor> tensors, int64_t limit) {
  std::sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) { return a.entry->name < b.entry->name; });
  std::vector<std::vector<FileTensor>> shards(1);
  int64_t bytes = 0;
  for (const FileTensor& tensor : tensors) {
    const auto size = static_cast<int64_t>(tensor.bytes().size());
    if (bytes > 0 && bytes + size > limit) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    shards.back().push_back(tensor);
  }
  return shards;
}

/// Writes one shard and records what is in it.
void write_shard(const fs::path& folder, const std::string& name, const std::vector<FileTensor>& tensors, Manifest& manifest) {
  std::vector<TensorSpec> specs;
  for (const FileTensor& tensor : tensors) specs.push_back({tensor.entry->name, tensor.entry->dtype, tensor.entry->shape});
  SafetensorsWriter writer(folder / name, specs, {{"format", "pt"}});
  for (const FileTensor& tensor : tensors) {
    manifest.tensors[tensor.entry->name] = {dtype_name(tensor.entry->dtype), tensor.entry->shape, name, hash_hex(tensor.bytes())};
    writer.write(tensor.entry->name, tensor.view());
    failpoint("convert.tensor");
  }
  writer.finish();
  const SafetensorsFile written(folder / name);
  manifest.shards[name] = {written.file_size(), hash_hex(written.header_bytes())};
}

/// What each original file was, under source/.
Json keep_sources(const fs::path& model, const Shards& shards, const fs::path& folder) {
  fs::create_directories(folder / kSource);
  Json files = Json::array();
  for (const auto& file : shards.files) {
    const std::string name = file->path().filename().string();
    const auto header = file->header_bytes();
    write_file_atomic(folder / kSource / (name + ".header"), std::string_view(reinterpret_cast<const char*>(header.data()), header.size()));
    files.push_back({{"file", name}, {"bytes", file->file_size()}, {"header_hash", hash_hex(header)}});
  }
  return files;
}

/// The index by which the checkpoint is a model folder too.
void write_index(const fs::path& folder, const Manifest& manifest, const std::vector<FileTensor>& tensors) {
  Json map = Json::object();
  for (const auto& [name, record] : manifest.tensors) map[name] = record.shard;
  std::size_t bytes = 0;
  for (const FileTensor& tensor : tensors) bytes += tensor.bytes().size();
  write_file_atomic(folder / kIndexName, Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(2) + "\n");
}

std::string broadcast_text(const Group& ranks, const std::string& text) {
  if (ranks.alone()) return text;
  at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  ranks.broadcast(size, 0);
  at::Tensor bytes = at::zeros({size.item<int64_t>()}, at::kByte);
  if (ranks.rank() == 0) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  ranks.broadcast(bytes, 0);
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>()), static_cast<std::size_t>(bytes.numel())};
}

/// One rank's records, for the first rank to merge.
std::string part_name(int rank) { return fmt::format("part_{}.json", rank); }

void check_new(const fs::path& out, const fs::path& from) {
  if (out.empty()) throw UserError("--out is empty\nhint: the folder to write");
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out) || fs::equivalent(out, from) || !fs::is_empty(out))
    throw UserError(fmt::format("{}: exists and is not an empty folder; it is left as it is\nhint: name a new folder", out.string()));
}

/// The original file from its header and the tensors in its order.
void write_original(const fs::path& checkpoint, const fs::path& to, const Json& source, const std::map<std::string, FileTensor>& tensors, const Manifest& manifest) {
  const std::string name = source.at("file");
  const fs::path header_path = safe_join(checkpoint / kSource, name + ".header", (checkpoint / kManifestName).string());
  const std::string header = read_file(header_path, std::size_t{200} << 20);
  if (hash_hex(header) != source.at("header_hash").get<std::string>()) throw DataError(fmt::format("{}: its hash differs from the manifest's: the file is damaged", header_path.string()));
  const Json entries = parse_json(std::string_view(header).substr(8), header_path.string(), {.max_bytes = std::size_t{200} << 20, .max_depth = 8});
  std::map<std::uint64_t, std::string> order;
  std::vector<std::string> empty;
  for (const auto& [tensor, entry] : entries.items()) {
    if (tensor == "__metadata__") continue;
    const std::uint64_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    if (begin < end) order[begin] = tensor;
    else empty.push_back(tensor);
  }
  AtomicFile file(safe_join(to, name, (checkpoint / kManifestName).string()));
  file.write(header);
  std::uint64_t written = 0;
  for (const auto& [begin, tensor] : order) {
    const auto found = tensors.find(tensor);
    if (found == tensors.end() || begin != written) throw DataError(fmt::format("{}: tensor {} of {} is not in the checkpoint", checkpoint.string(), tensor, name));
    const auto bytes = found->second.bytes();
    const std::string hash = hash_hex(bytes);
    if (hash != manifest.tensors.at(tensor).hash)
      throw DataError(fmt::format("{}: tensor {}: its hash is {}, but the manifest says {}: the file is damaged\nhint: convert the model again",
                                  found->second.file->path().string(), tensor, hash, manifest.tensors.at(tensor).hash));
    file.write(bytes);
    written += bytes.size();
    failpoint("convert.tensor");
  }
  if (header.size() + written != source.at("bytes").get<std::uint64_t>()) throw DataError(fmt::format("{}: {} would not have its size again", checkpoint.string(), name));
  file.commit();
}

}  // namespace

CheckpointFolder look_at_checkpoint(const fs::path& folder) {
  if (!fs::exists(folder)) return CheckpointFolder::kMissing;
  if (!fs::is_directory(folder)) return CheckpointFolder::kOther;
  if (fs::is_empty(folder)) return CheckpointFolder::kMissing;
  if (fs::exists(folder / kManifestName)) {
    const Manifest manifest = read_manifest(folder / kManifestName);
    return manifest.state.is_object() && manifest.state.value("kind", "") == kKind ? CheckpointFolder::kOurs : CheckpointFolder::kOther;
  }
  if (fs::exists(folder / "latest_checkpointed_iteration.txt") || fs::exists(folder / ".metadata")) return CheckpointFolder::kMegatron;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("iter_") || name.starts_with("mp_rank_") || name.ends_with(".distcp")) return CheckpointFolder::kMegatron;
  }
  return fs::exists(folder / "config.json") ? CheckpointFolder::kModel : CheckpointFolder::kOther;
}

void model_to_checkpoint(const fs::path& model, const fs::path& out, int64_t shard_bytes, const Group& ranks, Log& log) {
  check_new(out, model);
  const Shards shards = open_shards(model);
  const std::vector<FileTensor> tensors = shards.tensors();
  const auto groups = group_by_size(tensors, shard_bytes);
  const auto [kept, left] = side_files(model);
  for (const std::string& name : kept)
    if (name == kManifestName) throw DataError(fmt::format("{}: has a {}, which is a checkpoint's own name\nhint: rename or remove it", model.string(), name));
  const bool first = ranks.rank() == 0;
  const fs::path temporary = broadcast_text(ranks, first ? temporary_sibling(out).string() : "");
  try {
    if (first) fs::create_directories(temporary);
    ranks.barrier();
    Manifest manifest;
    for (std::size_t i = static_cast<std::size_t>(ranks.rank()); i < groups.size(); i += static_cast<std::size_t>(ranks.size())) {
      write_shard(temporary, weights_shard_name(i), groups[i], manifest);
      log.info("convert: wrote shard {} of {}", i + 1, groups.size());
    }
    if (!first) write_manifest(temporary / part_name(ranks.rank()), manifest);
    ranks.barrier();
    if (!first) {
      ranks.barrier();
      return;
    }
    for (int r = 1; r < ranks.size(); ++r) {
      Manifest part = read_manifest(temporary / part_name(r));
      manifest.tensors.merge(part.tensors);
      manifest.shards.merge(part.shards);
      fs::remove(temporary / part_name(r));
    }
    Json copied = Json::object();
    for (const std::string& name : kept) {
      const std::string content = read_file(safe_join(model, name, model.string()));
      write_file_atomic(temporary / name, content);
      copied[name] = hash_hex(content);
    }
    Json index = nullptr;   // the hash of the original, which lies under source/: the checkpoint has one of its own
    if (fs::exists(model / kIndexName)) {
      const std::string content = read_file(safe_join(model, kIndexName, model.string()));
      fs::create_directories(temporary / kSource);
      write_file_atomic(temporary / kSource / kIndexName, content);
      index = hash_hex(content);
    }
    for (const auto& entry : fs::directory_iterator(model))
      if (entry.is_directory()) log.warning("{}: folders are not carried", entry.path().string());
    if (!left.empty()) log.warning("{}: code and pickles are not carried: {}", model.string(), fmt::join(left, ", "));
    manifest.state = {{"kind", kKind}, {"files", keep_sources(model, shards, temporary)}, {"side_files", copied}, {"index", index}};
    write_index(temporary, manifest, tensors);
    write_manifest(temporary / kManifestName, manifest);
    failpoint("convert.publish");
    sync_tree(temporary);
    if (fs::exists(out)) fs::remove(out);   // an empty folder
    rename_durably(temporary, out);
    ranks.barrier();
  } catch (...) {
    std::error_code ignored;
    if (first) fs::remove_all(temporary, ignored);
    throw;
  }
}

void checkpoint_to_model(const fs::path& checkpoint, const fs::path& out, Log& log) {
  check_new(out, checkpoint);
  const Manifest manifest = read_manifest(checkpoint / kManifestName);
  if (look_at_checkpoint(checkpoint) != CheckpointFolder::kOurs) throw DataError(fmt::format("{}: a training checkpoint, not a model's weights\nhint: `export --checkpoint` serves it", checkpoint.string()));
  const Shards shards = open_shards(checkpoint);
  std::map<std::string, FileTensor> tensors;
  for (const FileTensor& tensor : shards.tensors()) {
    const auto record = manifest.tensors.find(tensor.entry->name);
    if (record == manifest.tensors.end() || dtype_name(tensor.entry->dtype) != record->second.dtype || tensor.entry->shape != record->second.shape)
      throw DataError(fmt::format("{}: tensor {} is not as the manifest says: the file is damaged", tensor.file->path().string(), tensor.entry->name));
    tensors.emplace(tensor.entry->name, tensor);
  }
  for (const auto& [name, record] : manifest.tensors)
    if (!tensors.count(name)) throw DataError(fmt::format("{}: tensor {} is in no shard", checkpoint.string(), name));
  publish_folder(out, [&](const fs::path& folder) {
    const Json& files = manifest.state.at("files");
    for (std::size_t i = 0; i < files.size(); ++i) {
      write_original(checkpoint, folder, files[i], tensors, manifest);
      log.info("convert: wrote file {} of {}", i + 1, files.size());
    }
    for (const auto& [name, hash] : manifest.state.at("side_files").items()) {
      const std::string content = read_file(safe_join(checkpoint, name, (checkpoint / kManifestName).string()));
      if (hash_hex(content) != hash.get<std::string>()) throw DataError(fmt::format("{}: its hash differs from the manifest's: the file is damaged or was edited", (checkpoint / name).string()));
      write_file_atomic(folder / name, content);
    }
    if (const Json& index = manifest.state.at("index"); !index.is_null()) {
      const std::string content = read_file(safe_join(checkpoint / kSource, kIndexName, (checkpoint / kManifestName).string()));
      if (hash_hex(content) != index.get<std::string>()) throw DataError(fmt::format("{}: its hash differs from the manifest's: the file is damaged", (checkpoint / kSource / kIndexName).string()));
      write_file_atomic(folder / kIndexName, content);
    }
    failpoint("convert.publish");
  });
}

void ensure_checkpoint(const fs::path& path, const fs::path& model, const Group& ranks, Log& log) {
  const CheckpointFolder own = look_at_checkpoint(path);
  const at::Tensor seen = ranks.all_gather(at::full({1}, static_cast<int64_t>(own), at::kLong), std::vector<int64_t>(static_cast<std::size_t>(ranks.size()), 1));
  std::vector<int> with, without;
  for (int r = 0; r < ranks.size(); ++r) (seen[r].item<int64_t>() == static_cast<int64_t>(CheckpointFolder::kMissing) ? without : with).push_back(r);
  if (!with.empty() && !without.empty())
    throw UserError(fmt::format("{}: the checkpoint is there for ranks {} but not for ranks {}\nhint: it must lie on a file system that all hosts share, under the same path", path.string(),
                                fmt::join(with, ", "), fmt::join(without, ", ")));
  switch (own) {
    case CheckpointFolder::kOurs: return;
    case CheckpointFolder::kMegatron:
      throw UserError(fmt::format("{}: a Megatron-Core checkpoint, which is not read\nhint: leave the checkpoint path away: weights come straight from the Hugging Face folder; or name a new "
                                  "folder, and they are converted into it", path.string()));
    case CheckpointFolder::kModel:
    case CheckpointFolder::kOther:
      throw UserError(fmt::format("{}: not a checkpoint of `scalewright convert`\nhint: name a new folder, and {} is converted into it", path.string(), model.string()));
    case CheckpointFolder::kMissing: break;
  }
  if (ranks.rank() == 0) {
    log.info("{}: no checkpoint yet: converting {}", path.string(), model.string());
    const std::unique_ptr<Group> one = make_single_group();
    model_to_checkpoint(model, path, kDefaultShardBytes, *one, log);
  } else {
    log.info("{}: waiting until rank 0 has converted the model", path.string());
  }
  ranks.barrier();
  if (look_at_checkpoint(path) != CheckpointFolder::kOurs)
    throw UserError(fmt::format("{}: rank 0 has converted the model, but rank {} does not see it\nhint: the path must lie on a file system that all hosts share", path.string(), ranks.rank()));
}

}  // namespace scalewright
