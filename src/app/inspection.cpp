#include "app/inspection.h"

#include <sstream>

#include "base/error.h"
#include "model/config.h"
#include "model/weights_shards.h"
#include "store/checkpoint.h"
#include "store/files.h"
#include "store/manifest.h"
#include "store/safetensors.h"
#include "text/token_shards.h"

namespace scalewright {

namespace {

OrderedJson tensor_of(const TensorEntry& entry) {
  return {{"name", entry.name}, {"dtype", dtype_name(entry.dtype)}, {"shape", entry.shape}, {"bytes", entry.end - entry.begin}};
}

/// Adds the sums over document["tensors"]: elements, bytes, and both for each dtype.
void add_totals(OrderedJson& document) {
  int64_t elements = 0, bytes = 0;
  OrderedJson dtypes = OrderedJson::object();
  for (const auto& tensor : document.at("tensors")) {
    const auto shape = tensor.at("shape").get<std::vector<int64_t>>();
    const int64_t tensor_bytes = tensor.at("bytes").get<int64_t>();
    auto& dtype = dtypes[tensor.at("dtype").get<std::string>()];
    if (dtype.is_null()) dtype = {{"tensors", 0}, {"bytes", 0}};
    dtype["tensors"] = dtype["tensors"].get<int64_t>() + 1;
    dtype["bytes"] = dtype["bytes"].get<int64_t>() + tensor_bytes;
    elements += c10::multiply_integers(shape);
    bytes += tensor_bytes;
  }
  document["elements"] = elements;
  document["bytes"] = bytes;
  document["dtypes"] = dtypes;
}

OrderedJson inspect_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  OrderedJson document = {{"kind", "safetensors"}, {"path", path.string()}, {"file_bytes", file.file_size()}, {"metadata", file.metadata()}};
  document["tensors"] = OrderedJson::array();
  for (const TensorEntry& entry : file.entries()) document["tensors"].push_back(tensor_of(entry));
  add_totals(document);
  return document;
}

/// The parts of a quantization_config that say what was done, whoever wrote it.
OrderedJson quantization_of(const Json& config, const std::vector<FileTensor>& tensors) {
  if (!config.contains("quantization_config")) return nullptr;
  const Json& quantization = config.at("quantization_config");
  OrderedJson result = OrderedJson::object();
  for (const char* key : {"quant_method", "quant_algo", "format", "version", "kv_cache_scheme", "ignore"}) {
    if (quantization.contains(key)) result[key] = quantization.at(key);
  }
  result["groups"] = OrderedJson::array();
  if (const auto groups = quantization.find("config_groups"); groups != quantization.end() && groups->is_object()) {
    for (const auto& [name, group] : groups->items()) {
      OrderedJson one = {{"name", name}};
      for (const char* key : {"format", "targets", "weights", "input_activations"}) one[key] = group.value(key, Json());
      result["groups"].push_back(one);
    }
  }
  // Every quantized linear has its scales under one of these names.
  result["quantized_modules"] = std::count_if(tensors.begin(), tensors.end(), [](const FileTensor& tensor) {
    return tensor.entry->name.ends_with(".weight_scale") || tensor.entry->name.ends_with(".weight_scale_inv");
  });
  return result;
}

OrderedJson inspect_model(const fs::path& path) {
  const fs::path folder = resolve_model_folder(path);
  Json config = read_json(folder / "config.json");
  if (!config.is_object()) throw DataError(fmt::format("{}: not an object", (folder / "config.json").string()));
  const Shards shards = open_shards(folder);
  const std::vector<FileTensor> tensors = shards.tensors();
  OrderedJson document = {{"kind", "model"}, {"path", folder.string()}, {"quantization", quantization_of(config, tensors)}};
  config.erase("quantization_config");
  document["config"] = config;
  document["tokenizer"] = fs::exists(folder / "tokenizer.json") || fs::exists(folder / "tokenizer_config.json");
  document["files"] = OrderedJson::array();
  for (const auto& file : shards.files) {
    document["files"].push_back({{"file", file->path().filename().string()}, {"bytes", file->file_size()}, {"tensors", file->entries().size()}});
  }
  document["tensors"] = OrderedJson::array();
  for (const FileTensor& tensor : tensors) {
    document["tensors"].push_back(tensor_of(*tensor.entry));
    document["tensors"].back()["file"] = tensor.file_name();
  }
  add_totals(document);
  return document;
}

OrderedJson inspect_token_shards(const fs::path& path) {
  OrderedJson document = {{"kind", "token_shards"}, {"path", path.string()}};
  const std::string where = (path / "manifest.json").string();
  const Json manifest = read_shards_manifest(path);
  for (const auto& [key, value] : manifest.items()) {
    if (key != "kind") document[key] = value;
  }
  if (!manifest.contains("shards") || !manifest.at("shards").is_array()) throw DataError(fmt::format("{}: \"shards\" is missing", where));
  for (const auto& shard : manifest.at("shards")) {
    if (!shard.is_object() || !shard.contains("file") || !shard.at("file").is_string()) {
      throw DataError(fmt::format("{}: a shard without \"file\"", where));
    }
    const SafetensorsFile file(safe_join(path, shard.at("file").get<std::string>(), where));   // its header is checked
  }
  return document;
}

OrderedJson inspect_checkpoint(const fs::path& path) {
  verify_checkpoint(path);
  const Manifest manifest = read_manifest(path / kManifestName);
  OrderedJson document = {{"kind", "checkpoint"}, {"path", path.string()}, {"step", manifest.step}, {"state", manifest.state}};
  document["tensors"] = OrderedJson::array();
  for (const auto& [name, record] : manifest.tensors) {
    const auto elements = c10::multiply_integers(record.shape);
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype_from_name(record.dtype, path.string())));
    document["tensors"].push_back({{"name", name}, {"dtype", record.dtype}, {"shape", record.shape}, {"bytes", elements * element_bytes},
                                   {"file", record.shard}, {"hash", record.hash}});
  }
  add_totals(document);
  return document;
}

OrderedJson steps_of(const fs::path& folder) {
  const auto latest = latest_checkpoint(folder);
  return {{"steps", list_checkpoints(folder)}, {"latest", latest ? OrderedJson(*latest) : OrderedJson(nullptr)}};
}

/// Number of lines of a JSON-lines file and its last whole line; null when there is no file.
OrderedJson lines_of(const fs::path& path) {
  if (!fs::is_regular_file(path)) return nullptr;
  std::istringstream stream(read_file(path));
  OrderedJson result = {{"lines", 0}, {"last", nullptr}};
  int64_t count = 0;
  for (std::string line, last; std::getline(stream, line); last = line) {
    ++count;
    if (const Json value = Json::parse(line, nullptr, false); !value.is_discarded()) result["last"] = value;
  }
  result["lines"] = count;
  return result;
}

OrderedJson inspect_run(const fs::path& path) {
  OrderedJson document = {{"kind", "run"}, {"path", path.string()}};
  document["checkpoints"] = steps_of(path / "checkpoints");
  document["journal"] = lines_of(path / "journal.jsonl");
  document["metrics"] = lines_of(path / "metrics.jsonl");
  document["scores"] = OrderedJson::object();
  std::error_code code;
  std::vector<fs::path> scores;
  for (const auto& entry : fs::directory_iterator(path / "scores", code)) {
    if (entry.path().extension() == ".json") scores.push_back(entry.path());
  }
  std::sort(scores.begin(), scores.end());
  for (const fs::path& file : scores) document["scores"][file.stem().string()] = read_json(file).value("average", Json());
  document["summary"] = fs::exists(path / "summary.json") ? OrderedJson(read_json(path / "summary.json")) : OrderedJson(nullptr);
  document["export"] = fs::exists(path / "export" / "config.json") ? OrderedJson((path / "export").string()) : OrderedJson(nullptr);
  return document;
}

bool holds_steps(const fs::path& folder) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().filename().string().starts_with("step_") && fs::exists(entry.path() / kManifestName)) return true;
  }
  return false;
}

bool looks_like_checkpoint(const fs::path& folder) {
  return fs::exists(folder / kManifestName) && read_file(folder / kManifestName).find("scalewright-checkpoint") != std::string::npos;
}

bool looks_like_run(const fs::path& folder) {
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  return has("journal.jsonl") || has("metrics.jsonl") || (has("config.yaml") && has("checkpoints"));
}

}  // namespace

OrderedJson inspect_path(const fs::path& path) {
  if (!fs::exists(path)) throw DataError(fmt::format("{}: no such file or folder", path.string()));
  if (!fs::is_directory(path)) {
    if (path.filename() == kManifestName) return inspect_path(path.has_parent_path() ? path.parent_path() : ".");
    return inspect_safetensors(path);
  }
  if (looks_like_run(path)) return inspect_run(path);
  if (is_token_shards(path)) return inspect_token_shards(path);
  if (looks_like_checkpoint(path) || path.filename().string().starts_with("step_")) return inspect_checkpoint(path);
  if (holds_steps(path)) {
    OrderedJson document = {{"kind", "checkpoints"}, {"path", path.string()}};
    document.update(steps_of(path));
    return document;
  }
  if (fs::exists(path / "config.json") || fs::exists(path / "snapshots")) return inspect_model(path);
  throw DataError(fmt::format("{}: nothing here that inspect knows\nhint: it reads a safetensors file, a model or export (config.json), "
                              "token shards or a checkpoint (manifest.json), a folder of checkpoints (step_N), or a run (journal.jsonl)",
                              path.string()));
}

}  // namespace scalewright
