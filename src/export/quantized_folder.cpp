#include "export/quantized_folder.h"

#include "base/error.h"
#include "export/ct_config.h"
#include "model/listing.h"
#include "store/files.h"

namespace scalewright {
namespace {

/// The format whose configuration this is.
const Format& recognize(const Json& quantization, const std::string& where) {
  for (const Format& format : all_formats()) {
    const Json ours = compressed_tensors_config(format, {});
    bool same = quantization.is_object();
    for (const char* key : {"quant_method", "format", "config_groups"}) same = same && quantization.contains(key) && quantization[key] == ours[key];
    if (same) return format;
  }
  throw DataError(fmt::format("{}: quantization_config is not one that this program writes\nhint: one compressed-tensors group of nvfp4, nvfp4a16, w4a16, w8a8, fp8 "
                              "or w4afp8 for all Linear modules", where));
}

std::set<std::string> ignored_names(const Json& quantization, const std::string& where) {
  std::set<std::string> names;
  const Json list = quantization.value("ignore", Json::array());
  if (!list.is_array()) throw DataError(fmt::format("{}: quantization_config.ignore is not a list", where));
  for (const Json& name : list) {
    if (!name.is_string() || name.get<std::string>().starts_with("re:"))
      throw DataError(fmt::format("{}: quantization_config.ignore holds {}, expected module names", where, name.dump()));
    names.insert(name.get<std::string>());
  }
  return names;
}

}  // namespace

QuantizedFolder::QuantizedFolder(const std::filesystem::path& folder, const ModelConfig& config)
    : path_(folder), tensors_(folder), specs_(scalewright::projections(config)) {
  const std::string where = (folder / "config.json").string();
  const Json document = read_json(folder / "config.json");
  if (!document.is_object() || !document.contains("quantization_config"))
    throw DataError(fmt::format("{}: no quantization_config\nhint: --quantized names a folder that export or ptq wrote", where));
  const Json& quantization = document["quantization_config"];
  format_ = &recognize(quantization, where);
  ignored_ = ignored_names(quantization, where);
  for (const ProjectionSpec& spec : specs_) {
    const auto ignored = std::count_if(spec.pieces.begin(), spec.pieces.end(), [&](const Piece& piece) { return ignored_.count(piece.module) > 0; });
    if (ignored == 0) plan_.formats[spec.name] = format_;
    else if (ignored != static_cast<int64_t>(spec.pieces.size()))
      throw DataError(fmt::format("{}: {} of the {} modules of {} are ignored; engines fuse them, so all or none must be", where, ignored, spec.pieces.size(), spec.name));
  }
  if (plan_.formats.empty()) throw DataError(fmt::format("{}: every projection is ignored", where));
}

std::vector<StoredModule> QuantizedFolder::modules(const ProjectionSpec& spec) const {
  SW_CHECK(plan_.formats.count(spec.name), "{} is not quantized in {}", spec.name, path_.string());
  std::vector<StoredModule> result;
  std::vector<std::string> faults;
  std::set<std::string> used;
  for (const Piece& piece : spec.pieces) {
    auto module = read_module(tensors_, piece.module, *format_, piece.row_end - piece.row_begin, spec.columns, std::nullopt, faults, used);
    if (module) result.push_back(std::move(*module));
  }
  if (!faults.empty()) throw DataError(fmt::format("{}: unusable\n{}", path_.string(), listing("faults", faults)));
  return result;
}

at::Tensor QuantizedFolder::weight(const ProjectionSpec& spec, bool vllm_w4afp8) const {
  const std::vector<StoredModule> stored = modules(spec);
  const at::Tensor result = at::empty({spec.experts, spec.rows, spec.columns}, at::kFloat);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const Piece& piece = spec.pieces[i];
    result[piece.expert].narrow(0, piece.row_begin, piece.row_end - piece.row_begin).copy_(dequantize(stored[i].weight, format_->weight, vllm_w4afp8)[0]);
  }
  return result;
}

std::optional<float> QuantizedFolder::input_divisor(const ProjectionSpec& spec) const {
  const std::string name = spec.pieces.front().module + ".input_global_scale";
  if (!format_->activation || format_->activation->layout != ScaleLayout::kTwoLevelBlock) return std::nullopt;
  if (!tensors_.has(name)) throw DataError(fmt::format("{}: {} is missing", path_.string(), name));
  return tensors_.tensor(name).item<float>();
}

void QuantizedFolder::install(Decoder& decoder, bool vllm_w4afp8) const {
  at::NoGradGuard no_grad;
  decoder.quantize(plan_);
  for (Projection* projection : decoder.projections()) {
    if (!projection->quantized()) continue;
    projection->set_student_weight(weight(projection->spec(), vllm_w4afp8));
    const auto divisor = input_divisor(projection->spec());
    // fl(1/fl(1/G)) is G again for a G that is itself a rounded reciprocal, so the quantizer computes with the file's.
    if (divisor) projection->input_quantizer()->set_ref(at::full({1}, 1.0f / *divisor, at::kFloat));
  }
}

void QuantizedFolder::check_globals(const ProjectionSpec& spec, const std::vector<StoredModule>& modules, std::vector<std::string>& faults) const {
  std::map<int64_t, float> of_expert;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const Piece& piece = spec.pieces[i];
    if (modules[i].weight.global_scale.defined()) {
      const float global = modules[i].weight.global_scale.item<float>();
      if (of_expert.emplace(piece.expert, global).first->second != global)
        faults.push_back(piece.module + ".weight_global_scale: differs within a fused group, of which engines use one");
    }
    if (modules[i].input_divisor.defined() && modules[i].input_divisor.item<float>() != modules.front().input_divisor.item<float>())
      faults.push_back(piece.module + ".input_global_scale: differs between modules with one input, of which engines use one");
  }
}

void QuantizedFolder::check_leftovers(const std::set<std::string>& used, std::vector<std::string>& faults) const {
  constexpr std::string_view kWeight = ".weight";
  for (const std::string& name : tensors_.names()) {
    if (used.count(name)) continue;
    for (const char* suffix : {".weight_packed", ".weight_scale", ".weight_global_scale", ".input_global_scale", ".weight_shape", ".weight_zero_point"})
      if (name.ends_with(suffix)) faults.push_back(name + ": belongs to no quantized module");
    if (!name.ends_with(kWeight) || name.ends_with("embed_tokens.weight") || tensors_.tensor(name).dim() != 2) continue;
    if (!ignored_.count(name.substr(0, name.size() - kWeight.size()))) faults.push_back(name + ": neither quantized nor in the ignore list");
  }
}

std::vector<std::string> QuantizedFolder::faults(std::size_t limit) const {
  std::vector<std::string> result;
  std::set<std::string> used;
  for (const ProjectionSpec& spec : specs_) {
    if (!plan_.formats.count(spec.name)) {
      for (const Piece& piece : spec.pieces)
        if (!tensors_.has(piece.module + ".weight")) result.push_back(piece.module + ".weight: missing");
      continue;
    }
    std::vector<StoredModule> stored;
    for (const Piece& piece : spec.pieces) {
      auto module = read_module(tensors_, piece.module, *format_, piece.row_end - piece.row_begin, spec.columns, std::nullopt, result, used);
      if (module) stored.push_back(std::move(*module));
    }
    if (stored.size() == spec.pieces.size()) check_globals(spec, stored, result);
  }
  check_leftovers(used, result);
  if (result.size() > limit) result.resize(limit);
  return result;
}

}  // namespace scalewright
