#include "export/verify.h"

#include <set>

#include "base/error.h"
#include "export/ct_config.h"
#include "quant/activation_quantizer.h"
#include "quant/weight_quantizer.h"
#include "store/files.h"

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

  // What a loader multiplies by, [R,K] float32; undefined when something is missing or misshapen.
  std::optional<StoredModule> stored(const std::string& module, const Format& format, const at::Tensor& student) {
    std::vector<std::string> faults;
    auto result = read_module(tensors_, module, format, student.size(0), student.size(1), weights_.dtype(), faults, expected_);
    for (const std::string& text : faults) fault("{}", text);
    return result;
  }

  void check_piece(const Piece& piece, const Format& format, const at::Tensor& student, const at::Tensor& divisor) {
    const std::optional<StoredModule> module = stored(piece.module, format, student);
    if (!module) return;
    const at::Tensor got = dequantize(module->weight, format.weight, plan_.vllm_w4afp8_rounding && format.name == "w4afp8")[0];
    ++report_.modules;
    report_.values += got.numel();
    if (!same_bits(got, student.contiguous())) {
      const int64_t different = (got != student).sum().item<int64_t>();
      fault("{}: {} of {} dequantized weights differ from the trained student's", piece.module, different, got.numel());
    }
    if (divisor.defined() && !same_bits(module->input_divisor, divisor)) fault("{}.input_global_scale: differs from the trained input scale", piece.module);
  }

  void check_configuration() {
    const Json document = read_json(folder_ / "config.json");
    if (!document.contains("quantization_config")) return fault("config.json: no quantization_config");
    Json plain = document;
    plain.erase("quantization_config");
    for (const auto& [key, value] : config_.raw.items())
      if (key != "quantization_config" && (!plain.contains(key) || plain[key] != value)) fault("config.json: {} is not the model's", key);
    for (const auto& [key, value] : plain.items())
      if (!config_.raw.contains(key)) fault("config.json: {} is not in the model's", key);
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

VerifyReport verify_export(const ModelConfig& config, const ModelWeights& weights, const QuantPlan& plan, const QuantizerState& state,
                           const std::filesystem::path& folder) {
  return Verification(config, weights, plan, state, folder).run();
}

}  // namespace scalewright
