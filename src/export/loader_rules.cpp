#include "export/loader_rules.h"

#include "base/error.h"
#include "base/near.h"

namespace scalewright {
namespace {

constexpr int64_t kLargestTp = 64;
constexpr int64_t kMoeAlignment = 256;   // of vLLM's W4AFP8 expert kernels, in hidden size and in each rank's intermediate size

bool column_parallel(Place place) {
  return place == Place::kQkv || place == Place::kGateUp || place == Place::kExpertGateUp || place == Place::kSharedGateUp;
}

std::string device_needed(const Format& format) {
  if (format.name == "nvfp4") return "compute capability 10.0 or higher (FP4 tensor cores)";
  if (format.name == "w4afp8") return "compute capability 9.0 exactly (W4AFP8 kernels)";
  if (format.name == "fp8") return "compute capability 8.9 or higher (FP8 tensor cores)";
  if (format.name == "w8a8") return "compute capability 7.5 or higher (INT8 tensor cores)";
  return "compute capability 8.0 or higher (Marlin kernels)";
}

/// Rows of one module that a column-parallel cut must share out evenly, and the unit that may not be cut.
void check_rows(const ModelConfig& config, const ProjectionSpec& spec, int64_t tp, std::vector<std::string>& faults) {
  if (spec.place == Place::kQkv) {
    if (config.heads % tp != 0) faults.push_back(fmt::format("{}: {} query heads do not divide by {}", spec.name, config.heads, tp));
    if (config.kv_heads % tp != 0 && tp % config.kv_heads != 0)
      faults.push_back(fmt::format("{}: {} key-value heads neither divide by {} nor are divided by it", spec.name, config.kv_heads, tp));
    return;
  }
  const int64_t rows = spec.pieces.front().row_end - spec.pieces.front().row_begin;
  if (rows % tp != 0) faults.push_back(fmt::format("{}: {} rows do not divide by {}", spec.name, rows, tp));
}

/// One fault a kind of projection is enough: layers repeat.
void add_once(std::vector<std::string>& to, const std::vector<std::string>& from, std::set<std::string>& seen, Place place) {
  for (const std::string& text : from) {
    const std::string kind = fmt::format("{} {}", static_cast<int>(place), text.substr(text.find(':')));
    if (seen.insert(kind).second) to.push_back(text);
  }
}

void check_w4afp8(const ModelConfig& config, const QuantizedFolder& folder, LoaderReport& report) {
  const bool routed = std::any_of(folder.projections().begin(), folder.projections().end(),
                                  [&](const ProjectionSpec& spec) { return spec.routed() && folder.plan().formats.count(spec.name); });
  const bool dense = std::any_of(folder.projections().begin(), folder.projections().end(),
                                 [&](const ProjectionSpec& spec) { return !spec.routed() && folder.plan().formats.count(spec.name); });
  if (report.engine == Engine::kSglang) {
    if (dense) report.errors.push_back("SGLang runs W4AFP8 in experts only; dense projections are quantized here\nhint: quantize.experts_only");
    return;
  }
  if (routed) {
    if (config.hidden % kMoeAlignment != 0) report.errors.push_back(fmt::format("hidden size {} is not a multiple of {}, as W4AFP8 experts need", config.hidden, kMoeAlignment));
    if (config.expert_intermediate / report.tp % kMoeAlignment != 0)
      report.errors.push_back(fmt::format("expert intermediate size {} on each of {} ranks is not a multiple of {}, as W4AFP8 experts need", config.expert_intermediate, report.tp,
                                          kMoeAlignment));
  }
  const ReroundingEffect effect = vllm_w4afp8_effect(folder);
  report.warnings.push_back(fmt::format("vLLM re-rounds group scales to E4M3 at load: scales move by up to {:.2f} %, weights by {:.3f} % (relative L2)\n"
                                        "hint: quantize.w4afp8_rounding: vllm trains with those scales",
                                        100 * effect.largest_scale_change, 100 * effect.weight_error));
}

void check_engine(const ModelConfig& config, const QuantizedFolder& folder, LoaderReport& report) {
  const Format& format = folder.format();
  if (report.engine == Engine::kTrtllm) {
    report.errors.push_back("TensorRT-LLM reads ModelOpt's layout (hf_quant_config.json), which a compressed-tensors folder does not have");
    return;
  }
  if (format.name == "w4afp8") check_w4afp8(config, folder, report);
  const bool routed = config.experts > 0;
  if (report.engine == Engine::kSglang && format.name == "w8a8" && routed) report.errors.push_back("SGLang runs INT8 W8A8 experts on NPUs only");
  if (format.name == "nvfp4") report.warnings.push_back("below compute capability 10.0 engines fall back to weight-only kernels: other logits than the trained ones");
}

}  // namespace

Engine find_engine(const std::string& name) {
  const std::vector<std::string> names = {"vllm", "sglang", "trtllm"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<Engine>(i);
  const auto near = nearest(name, names);
  throw UserError(fmt::format("unknown engine '{}'; allowed: {}{}", name, fmt::join(names, ", "), near ? fmt::format("\nhint: did you mean '{}'?", *near) : std::string()));
}

std::string engine_name(Engine engine) { return engine == Engine::kVllm ? "vllm" : engine == Engine::kSglang ? "sglang" : "trtllm"; }

OrderedJson to_json(const LoaderReport& report) {
  return {{"engine", engine_name(report.engine)}, {"tp", report.tp},           {"ok", report.ok()},         {"largest_tp", report.largest_tp},
          {"needs", report.needs},                {"errors", report.errors}, {"warnings", report.warnings}};
}

std::vector<std::string> tensor_parallel_faults(const ModelConfig& config, const Format& format, const std::vector<ProjectionSpec>& specs, const QuantPlan& plan,
                                                int64_t tp) {
  std::vector<std::string> result;
  std::set<std::string> seen;
  for (const ProjectionSpec& spec : specs) {
    std::vector<std::string> faults;
    if (column_parallel(spec.place)) check_rows(config, spec, tp, faults);
    else if (spec.columns % tp != 0) faults.push_back(fmt::format("{}: {} columns do not divide by {}", spec.name, spec.columns, tp));
    else if (plan.formats.count(spec.name) && format.weight.group > 0 && spec.columns / tp % format.weight.group != 0)
      faults.push_back(fmt::format("{}: {} columns on {} ranks leave {}, which cuts a group of {}", spec.name, spec.columns, tp, spec.columns / tp, format.weight.group));
    add_once(result, faults, seen, spec.place);
  }
  return result;
}

ReroundingEffect vllm_w4afp8_effect(const QuantizedFolder& folder) {
  ReroundingEffect effect;
  double error = 0.0, total = 0.0;
  for (const ProjectionSpec& spec : folder.projections()) {
    if (!folder.plan().formats.count(spec.name)) continue;
    const at::Tensor stored = folder.weight(spec), served = folder.weight(spec, true);
    const at::Tensor difference = (served - stored).to(at::kDouble);
    error += difference.square().sum().item<double>();
    total += stored.to(at::kDouble).square().sum().item<double>();
    // A group's scale moved as far as any of its non-zero weights.
    const at::Tensor relative = at::where(stored.eq(0), at::zeros_like(difference), difference.abs() / stored.abs());
    effect.largest_scale_change = std::max(effect.largest_scale_change, relative.max().item<double>());
  }
  effect.weight_error = total > 0 ? std::sqrt(error / total) : 0.0;
  return effect;
}

LoaderReport check_loader(const ModelConfig& config, const QuantizedFolder& folder, Engine engine, int64_t tp) {
  if (tp < 1) throw UserError(fmt::format("--tp {}: at least 1 is expected", tp));
  LoaderReport report;
  report.engine = engine;
  report.tp = tp;
  report.needs = device_needed(folder.format());
  const auto faults = [&](int64_t degree) { return tensor_parallel_faults(config, folder.format(), folder.projections(), folder.plan(), degree); };
  for (int64_t degree = 2; degree <= kLargestTp; ++degree)
    if (faults(degree).empty()) report.largest_tp = degree;
  report.errors = faults(tp);
  if (!report.errors.empty()) report.errors.push_back(fmt::format("the largest legal --tp is {}", report.largest_tp));
  check_engine(config, folder, report);
  return report;
}

}  // namespace scalewright
