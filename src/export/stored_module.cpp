#include "export/stored_module.h"

#include "base/error.h"
#include "base/json.h"
#include "export/packing.h"
#include "store/files.h"

namespace scalewright {

std::vector<TensorSpec> module_tensors(const std::string& module, const Format& format, int64_t rows, int64_t columns, at::ScalarType stored) {
  std::vector<TensorSpec> result;
  const auto add = [&](const char* suffix, at::ScalarType dtype, std::vector<int64_t> shape) {
    result.push_back({module + "." + suffix, dtype, std::move(shape)});
  };
  if (format.activation && format.activation->layout == ScaleLayout::kTwoLevelBlock) add("input_global_scale", at::kFloat, {1});
  switch (format.weight.grid) {
    case Grid::kE2M1:
      add("weight_global_scale", at::kFloat, {1});
      add("weight_packed", at::kByte, {rows, columns / 2});
      add("weight_scale", at::kFloat8_e4m3fn, {rows, columns / format.weight.group});
      break;
    case Grid::kInt4:
      add("weight_packed", at::kInt, {rows, (columns + 7) / 8});
      add("weight_scale", stored, {rows, columns / format.weight.group});
      add("weight_shape", at::kLong, {2});
      break;
    case Grid::kInt8:
    case Grid::kE4M3:
      add("weight", format.weight.grid == Grid::kInt8 ? at::kChar : at::kFloat8_e4m3fn, {rows, columns});
      add("weight_scale", stored, {rows, 1});
      break;
  }
  return result;
}

ExportedTensors::ExportedTensors(const std::filesystem::path& folder) {
  std::set<std::string> shards;
  const fs::path index = folder / "model.safetensors.index.json";
  Json map = Json::object();
  if (fs::exists(index)) {
    const Json document = read_json(index);
    if (!document.is_object() || !document.contains("weight_map") || !document["weight_map"].is_object())
      throw DataError(fmt::format("{}: no weight_map", index.string()));
    map = document["weight_map"];
    for (const auto& [name, shard] : map.items()) {
      if (!shard.is_string()) throw DataError(fmt::format("{}: the shard of '{}' is not a name", index.string(), name));
      shards.insert(shard.get<std::string>());
    }
  } else {
    shards.insert("model.safetensors");
  }
  for (const std::string& shard : shards) {
    const fs::path path = safe_join(folder, shard, index.string());
    if (!fs::exists(path)) throw DataError(fmt::format("{}: missing\nhint: an export folder holds config.json and *.safetensors", path.string()));
    open_[shard] = std::make_shared<SafetensorsFile>(path);
    for (const TensorEntry& entry : open_[shard]->entries())
      if (!files_.emplace(entry.name, shard).second) throw DataError(fmt::format("{}: '{}' is in two shards", folder.string(), entry.name));
  }
  for (const auto& [name, shard] : map.items()) {
    const auto found = files_.find(name);
    if (found == files_.end() || found->second != shard.get<std::string>())
      throw DataError(fmt::format("{}: '{}' is not in {}", index.string(), name, shard.get<std::string>()));
  }
}

std::vector<std::string> ExportedTensors::names() const {
  std::vector<std::string> result;
  for (const auto& [name, shard] : files_) result.push_back(name);
  return result;
}

at::Tensor ExportedTensors::tensor(const std::string& name) const {
  const auto found = files_.find(name);
  SW_CHECK(found != files_.end(), "no tensor {}", name);
  return open_.at(found->second)->tensor(name);
}

namespace {

bool is_scale(const std::string& name) { return name.ends_with("_scale"); }

/// Whether `got` may stand for `want`: same shape and dtype, but group and channel scales of any float dtype where none is asked for.
bool fits(const at::Tensor& got, const TensorSpec& want, bool any_float) {
  if (got.sizes() != at::IntArrayRef(want.shape)) return false;
  if (got.scalar_type() == want.dtype) return true;
  return any_float && (got.scalar_type() == at::kBFloat16 || got.scalar_type() == at::kHalf || got.scalar_type() == at::kFloat);
}

/// The module's tensors by suffix; empty when one is missing or misshapen.
std::map<std::string, at::Tensor> take(const ExportedTensors& tensors, const std::string& module, const std::vector<TensorSpec>& specs,
                                       at::ScalarType stored, bool any_float, std::vector<std::string>& faults) {
  std::map<std::string, at::Tensor> result;
  bool whole = true;
  for (const TensorSpec& want : specs) {
    if (!tensors.has(want.name)) {
      faults.push_back(want.name + ": missing");
      whole = false;
      continue;
    }
    const at::Tensor got = tensors.tensor(want.name);
    if (!fits(got, want, any_float && want.dtype == stored)) {
      faults.push_back(fmt::format("{}: {} [{}], expected {} [{}]", want.name, dtype_name(got.scalar_type()), fmt::join(got.sizes(), ", "), dtype_name(want.dtype),
                                   fmt::join(want.shape, ", ")));
      whole = false;
      continue;
    }
    if (is_scale(want.name)) {
      const at::Tensor value = got.to(at::kFloat);
      if (!at::isfinite(value).logical_and(value.gt(0)).all().item<bool>()) faults.push_back(want.name + ": a scale is zero, negative or not finite");
    }
    result[want.name.substr(module.size() + 1)] = got;
  }
  return whole ? result : std::map<std::string, at::Tensor>();
}

}  // namespace

std::optional<StoredModule> read_module(const ExportedTensors& tensors, const std::string& module, const Format& format, int64_t rows, int64_t columns,
                                        std::optional<at::ScalarType> stored, std::vector<std::string>& faults, std::set<std::string>& used) {
  const at::ScalarType dtype = stored.value_or(at::kBFloat16);
  const std::vector<TensorSpec> specs = module_tensors(module, format, rows, columns, dtype);
  for (const TensorSpec& spec : specs) used.insert(spec.name);
  auto parts = take(tensors, module, specs, dtype, !stored, faults);
  if (parts.empty()) return std::nullopt;

  StoredModule result;
  switch (format.weight.grid) {
    case Grid::kE2M1:
      result.weight.codes = unpack_nibbles(parts["weight_packed"]);
      result.weight.global_scale = parts["weight_global_scale"].clone();
      break;
    case Grid::kInt4: {
      const at::Tensor shape = parts["weight_shape"];
      if (shape[0].item<int64_t>() != rows || shape[1].item<int64_t>() != columns) {
        faults.push_back(fmt::format("{}.weight_shape: [{}, {}], expected [{}, {}]", module, shape[0].item<int64_t>(), shape[1].item<int64_t>(), rows, columns));
        return std::nullopt;
      }
      result.weight.codes = unpack_int32(parts["weight_packed"], columns);
      break;
    }
    case Grid::kInt8: result.weight.codes = parts["weight"]; break;
    case Grid::kE4M3:
      result.weight.codes = parts["weight"].view(at::kByte);
      if (result.weight.codes.bitwise_and(0x7f).eq(0x7f).any().item<bool>()) faults.push_back(module + ".weight: a code is NaN");
      break;
  }
  result.weight.codes = result.weight.codes.unsqueeze(0);
  result.weight.scale = parts["weight_scale"].unsqueeze(0);
  if (parts.count("input_global_scale")) result.input_divisor = parts["input_global_scale"].clone();
  return result;
}

}  // namespace scalewright
