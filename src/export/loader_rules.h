// What serving engines demand of an exported folder, beyond that its tensors are whole: devices, kernels, tensor parallelism.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "export/quantized_folder.h"

namespace scalewright {

enum class Engine { kVllm, kSglang, kTrtllm };
/// Throws UserError listing vllm, sglang, trtllm.
Engine find_engine(const std::string& name);
std::string engine_name(Engine engine);

struct LoaderReport {
  Engine engine = Engine::kVllm;
  int64_t tp = 1;
  int64_t largest_tp = 1;              // largest degree, up to 64, that cuts no head and no scale group
  std::string needs;                   // device, in words
  std::vector<std::string> errors;     // the engine refuses, or computes garbage
  std::vector<std::string> warnings;
  bool ok() const { return errors.empty(); }
};
OrderedJson to_json(const LoaderReport& report);

/// Reasons against tensor parallelism of `tp`: heads or columns that do not divide, a scale group or block that is cut. Empty: legal.
std::vector<std::string> tensor_parallel_faults(const ModelConfig& config, const Format& format, const std::vector<ProjectionSpec>& specs, const QuantPlan& plan,
                                                int64_t tp);

/// The rules are read from the engines' sources (vLLM 0.33, SGLang 0.5.23); no engine is started.
LoaderReport check_loader(const ModelConfig& config, const QuantizedFolder& folder, Engine engine, int64_t tp);

/// vLLM's W4AFP8 kernels re-round group scales to E4M3 at load: how far that moves the weights.
struct ReroundingEffect {
  double largest_scale_change = 0.0;   // relative, over all groups
  double weight_error = 0.0;           // relative L2 over all weights
};
ReroundingEffect vllm_w4afp8_effect(const QuantizedFolder& folder);

}  // namespace scalewright
