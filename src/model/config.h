// The architecture as data: what a config.json says, whatever dialect (hub or transformers 5) it says it in.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/json.h"

namespace scalewright {

enum class ModelType { kQwen3Moe, kHyV3, kQwen3, kQwen2, kLlama };

struct RopeConfig {
  std::string type = "default";        // default, linear, llama3, yarn (dynamic and longrope are refused)
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;   // llama3
  int64_t original_max_position = 0;                      // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;               // yarn
  double attention_factor = 0.0;                          // yarn; 0: 0.1 ln(factor) + 1
  double mscale = 0.0, mscale_all_dim = 0.0;              // yarn variants
  bool truncate = true;                                   // yarn: correction range rounded to integers
};

struct ModelConfig {
  ModelType type;
  std::string model_type;              // as written
  int64_t vocabulary = 0, hidden = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t intermediate = 0;            // dense MLP
  int64_t experts = 0, top_k = 0, expert_intermediate = 0, shared_experts = 0;
  std::vector<bool> sparse;            // [layers]: whether the layer's MLP is a mixture of experts
  bool qk_norm = false;                // RMSNorm of q and k per head
  bool attention_bias = false;         // bias on q, k, v
  bool attention_output_bias = false;  // bias on o
  bool mlp_bias = false;
  bool norm_topk_prob = false;
  bool sigmoid_router = false;         // hy_v3: sigmoid scores, selection by score + bias, weights from the score
  double router_scaling = 1.0;
  double norm_eps = 1e-6;
  bool tied_head = false;
  int64_t max_position = 0;
  RopeConfig rope;
  std::string dtype = "bfloat16";      // as stored
  std::vector<int64_t> eos;            // stop tokens of config.json and generation_config.json
  Json raw;                            // the whole file, passed through to exports
};

/// Whether a config.json that describes quantized weights (an export of ours, say) may be read.
enum class QuantizedConfig { kRefused, kAllowed };

/// Reads config.json (and generation_config.json for stop tokens) of a folder. Throws DataError for a missing file, an unknown
/// model_type (naming the known ones), missing or contradictory keys, sizes out of range, or (unless allowed) a quantized model.
ModelConfig read_model_config(const std::filesystem::path& folder, QuantizedConfig quantized = QuantizedConfig::kRefused);

/// The folder that holds config.json: `path` itself, or the newest snapshot of a Hugging Face cache folder (refs/main first).
std::filesystem::path resolve_model_folder(const std::filesystem::path& path);

/// Inverse frequencies [head_dim/2] in float64 and the factor on cos and sin (transformers' modeling_rope_utils: default, linear,
/// llama3, yarn; it computes them in float32, we in float64).
struct RopeFrequencies {
  at::Tensor inverse;
  double attention_scaling = 1.0;
};
RopeFrequencies rope_frequencies(const ModelConfig& config);

}  // namespace scalewright
