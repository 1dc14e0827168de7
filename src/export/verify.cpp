#include "export/verify.h"

#include <set>

#include "base/error.h"
#include "export/ct_config.h"
#include "export/packing.h"
#include "quant/activation_quantizer.h"
#include "quant/weight_quantizer.h"
#include "store/files.h"
#include "store/safetensors.h"

namespace scalewright {
namespace {

constexpr std::size_t kShownFaults = 100;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  return at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

// The comparison of one folder.
class Verification {
 public:
  Verification(const ModelConfig& config, const ModelWeights& weights, const QuantPlan& plan, const QuantizerState& state, const fs::path& folder)
      : config_(config), weights_(weights), plan_(plan), state_(state), folder_(folder), tensors_(folder), specs_(projections(config)) {}

  VerifyReport run() {
    at::NoGradGuard no_grad;
    for (const ProjectionSpec& spec : specs_) check_projection(spec);
    for (const ModelWeights::Unquantized& u : weights_.unquantized()) check_copied(u.name);
    for (const std::string& name : tensors_.names())
      if (!expected_.count(name)) fault("{}: not a tensor of this model and format", name);
    check_configuration();
    return std::move(report_);
  }

 private:
  template <typename... A>
  void fault(fmt::format_string<A...> text, A&&... arguments) {
    if (report_.faults.size() < kShownFaults) report_.faults.push_back(fmt::format(text, std::forward<A>(arguments)...));
  }

  // The tensor, or undefined with a fault.
  at::Tensor take(const std::string& name) {
    expected_.insert(name);
    if (tensors_.has(name)) return tensors_.tensor(name);
    fault("{}: missing", name);
    return {};
  }

  void check_copied(const std::string& name) {
    const at::Tensor got = take(name);
    if (got.defined() && !same_bits(got, weights_.unquantized_tensor(name))) fault("{}: differs from the model's", name);
  }

  void check_projection(const ProjectionSpec& spec) {
    const auto format = plan_.formats.find(spec.name);
    const at::Tensor weight = weights_.stacked(spec);
    if (format == plan_.formats.end()) {
      for (const Piece& piece : spec.pieces) {
        const at::Tensor got = take(piece.module + ".weight");
        if (got.defined() && !same_bits(got, rows(weight, piece))) fault("{}.weight: differs from the model's", piece.module);
        ignored_.insert(piece.module);
      }
      return;
    }
    const at::Tensor student = student_weight(spec, *format->second, weight);
    const at::Tensor divisor = input_divisor(spec, *format->second);
    for (const Piece& piece : spec.pieces) check_piece(piece, *format->second, rows(student, piece), divisor);
  }

  static at::Tensor rows(const at::Tensor& stacked, const Piece& piece) {
    return stacked[piece.expert].narrow(0, piece.row_begin, piece.row_end - piece.row_begin);
  }

  const at::Tensor& state(const std::string& name) const {
    const auto found = state_.find(name);
    if (found == state_.end()) throw DataError(fmt::format("verify: the trained scales lack '{}'", name));
    return found->second;
  }

  static Compute compute_of(const at::Tensor& alpha) { return {alpha.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, at::kCPU, false}; }

  // The weight that training multiplied by, in float32, by the training code path.
  at::Tensor student_weight(const ProjectionSpec& spec, const Format& format, const at::Tensor& weight) const {
    const at::Tensor& alpha = state("alpha/" + spec.name);
    WeightQuantizer quantizer(spec.name, format.weight, plan_.numerics, weight, compute_of(alpha), weights_.dtype());
    quantizer.alpha().copy_(alpha);
    quantizer.set_vllm_w4afp8_rounding(plan_.vllm_w4afp8_rounding && format.name == "w4afp8");
    return quantizer.fake_quantize(weight, at::kFloat);
  }

  at::Tensor input_divisor(const ProjectionSpec& spec, const Format& format) const {
    if (!format.activation || format.activation->layout != ScaleLayout::kTwoLevelBlock) return {};
    const at::Tensor& alpha = state("alpha/" + spec.input_name);
    ActivationQuantizer input(spec.input_name, *format.activation, plan_.numerics, spec.routed() ? spec.experts : 0, compute_of(alpha));
    input.alpha().copy_(alpha);
    input.set_ref(state("ref/" + spec.input_name));
    return input.exported_divisor().reshape({1});
  }

  void check_scale(const std::string& name, const at::Tensor& scale) {
    const at::Tensor value = scale.to(at::kFloat);
    if (!(at::isfinite(value) & (value > 0)).all().item<bool>()) fault("{}: a scale is zero, negative or not finite", name);
  }

  // The stored form of one module -> what a loader multiplies by, [R,K] float32; undefined when something is missing or misshapen.
  at::Tensor loader_weight(const std::string& module, const Format& format, int64_t row_count, int64_t columns) {
    QuantizedWeight q;
    at::Tensor scale = take(module + ".weight_scale");
    const bool packed = format.weight.grid == Grid::kE2M1 || format.weight.grid == Grid::kInt4;
    const std::string codes_name = module + (packed ? ".weight_packed" : ".weight");
    at::Tensor codes = take(codes_name);
    if (!scale.defined() || !codes.defined()) return {};
    check_scale(module + ".weight_scale", scale);
    if (format.weight.grid == Grid::kE2M1) {
      const at::Tensor global = take(module + ".weight_global_scale");
      if (!global.defined()) return {};
      check_scale(module + ".weight_global_scale", global);
      q.global_scale = global.reshape({1});
      codes = unpack_nibbles(codes);
    } else if (format.weight.grid == Grid::kInt4) {
      const at::Tensor shape = take(module + ".weight_shape");
      if (!shape.defined() || shape.numel() != 2 || shape[0].item<int64_t>() != row_count || shape[1].item<int64_t>() != columns) {
        fault("{}.weight_shape: does not say {}x{}", module, row_count, columns);
        return {};
      }
      codes = unpack_int32(codes, columns);
    } else if (format.weight.grid == Grid::kE4M3) {
      codes = codes.view(at::kByte);
    }
    if (codes.dim() != 2 || codes.size(0) != row_count || codes.size(1) != columns || scale.dim() != 2 || scale.size(0) != row_count) {
      fault("{}: wrong shape", codes_name);
      return {};
    }
    q.codes = codes.unsqueeze(0);
    q.scale = scale.unsqueeze(0);
    return dequantize(q, format.weight)[0];
  }

  void check_piece(const Piece& piece, const Format& format, const at::Tensor& student, const at::Tensor& divisor) {
    const at::Tensor got = loader_weight(piece.module, format, student.size(0), student.size(1));
    if (got.defined()) {
      ++report_.modules;
      report_.values += got.numel();
      if (!same_bits(got, student.contiguous())) {
        const int64_t different = (got != student).sum().item<int64_t>();
        fault("{}: {} of {} dequantized weights differ from the trained student's", piece.module, different, got.numel());
      }
    }
    if (!divisor.defined()) return;
    const std::string name = piece.module + ".input_global_scale";
    const at::Tensor input = take(name);
    if (!input.defined()) return;
    check_scale(name, input);
    if (!same_bits(input.reshape({1}), divisor)) fault("{}: differs from the trained input scale", name);
  }

  void check_configuration() {
    const Json document = read_json(folder_ / "config.json");
    if (!document.contains("quantization_config")) return fault("config.json: no quantization_config");
    for (const std::string& module : weights_.unquantized_linear_modules()) ignored_.insert(module);
    const Json expected = compressed_tensors_config(*plan_.formats.begin()->second, {ignored_.begin(), ignored_.end()});
    const Json& got = document["quantization_config"];
    for (const auto& [key, value] : expected.items())
      if (!got.contains(key) || got[key] != value) fault("config.json: quantization_config.{} is not what the tensors say", key);
  }

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const QuantPlan& plan_;
  const QuantizerState& state_;
  fs::path folder_;
  ExportedTensors tensors_;
  std::vector<ProjectionSpec> specs_;
  std::set<std::string> expected_, ignored_;
  VerifyReport report_;
};

}  // namespace

OrderedJson to_json(const VerifyReport& report) {
  return {{"verified", report.ok()}, {"modules", report.modules}, {"values", report.values}, {"faults", report.faults}};
}

ExportedTensors::ExportedTensors(const std::filesystem::path& folder) {
  std::set<std::string> shards;
  const fs::path index = folder / "model.safetensors.index.json";
  Json map;
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
  for (const auto& [name, shard] : map.items())
    if (!files_.count(name)) throw DataError(fmt::format("{}: '{}' is not in {}", folder.string(), name, shard.get<std::string>()));
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

VerifyReport verify_export(const ModelConfig& config, const ModelWeights& weights, const QuantPlan& plan, const QuantizerState& state,
                           const std::filesystem::path& folder) {
  return Verification(config, weights, plan, state, folder).run();
}

}  // namespace scalewright
