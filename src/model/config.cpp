#include "model/config.h"

#include "base/error.h"
#include "base/near.h"
#include "model/config_keys.h"
#include "model/config_parts.h"

namespace scalewright {

namespace {

using Range = ConfigKeys::Range;

// Far above any real model, and low enough that no product of them overflows and no name table fills the memory.
constexpr Range kLayers{1, 10000};
constexpr Range kVocabulary{1, int64_t{1} << 24};
constexpr Range kHidden{1, int64_t{1} << 20};
constexpr Range kHeads{1, int64_t{1} << 16};
constexpr Range kHeadDim{2, int64_t{1} << 14};
constexpr Range kIntermediate{1, int64_t{1} << 22};
constexpr Range kExperts{0, int64_t{1} << 16};
constexpr Range kSharedExperts{0, 1024};
constexpr Range kPositions{1, int64_t{1} << 40};
constexpr int64_t kMostExpertsOfAllLayers = 1000000;

/// What a model type leaves out of its config.json (transformers' defaults), and what it does not let the file choose.
struct Family {
  const char* name;
  ModelType type;
  bool mixture;              // has experts
  bool qk_norm;
  bool qkv_bias_always;      // qwen2
  int64_t head_dim;          // when absent; 0: hidden / heads
  double norm_eps;
  double rope_theta;
  int64_t max_position;
};

constexpr std::array<Family, 5> kFamilies{{
    {"hy_v3", ModelType::kHyV3, true, true, false, 128, 1e-5, 11158840.0, 131072},
    {"llama", ModelType::kLlama, false, false, false, 0, 1e-6, 10000.0, 2048},
    {"qwen2", ModelType::kQwen2, false, false, true, 0, 1e-6, 10000.0, 32768},
    {"qwen3", ModelType::kQwen3, false, true, false, 128, 1e-6, 10000.0, 32768},
    {"qwen3_moe", ModelType::kQwen3Moe, true, true, false, 0, 1e-6, 10000.0, 32768},
}};

const Family& find_family(const ConfigKeys& keys) {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  const std::string allowed = fmt::format("one of {}", fmt::join(names, ", "));
  const auto type = keys.maybe_text({"model_type"});
  if (!type) keys.missing({"model_type"}, allowed);
  for (const Family& family : kFamilies) {
    if (*type == family.name) return family;
  }
  const auto near = nearest(*type, names);
  keys.refuse("model_type", allowed, near ? fmt::format("the nearest is {}", *near) : "");
}

void refuse_quantized(const ConfigKeys& keys, const std::filesystem::path& file) {
  for (const char* name : {"quantization_config", "compression_config"}) {
    if (!keys.has({name})) continue;
    throw DataError(
        fmt::format("{}: {} says that this model is quantized already; expected a BF16, FP16 or FP32 model\n"
                    "hint: give the folder of the original model; an export is read by verify, generate and eval with --quantized",
                    file.string(), name));
  }
}

void refuse_unsupported(const ConfigKeys& keys) {
  const std::string activation = keys.maybe_text({"hidden_act", "hidden_activation"}).value_or("silu");
  if (activation != "silu" && activation != "swish") {
    keys.refuse(keys.has({"hidden_act"}) ? "hidden_act" : "hidden_activation", "silu", "no other activation is implemented");
  }
  for (const char* name : {"n_group", "topk_group", "num_expert_groups"}) {
    if (keys.maybe_integer({name}, {0, INT32_MAX}).value_or(1) > 1) keys.refuse(name, "1", "routing by groups of experts is not implemented");
  }
}

void read_attention(const ConfigKeys& keys, const Family& family, ModelConfig& config) {
  config.heads = keys.integer({"num_attention_heads"}, kHeads);
  config.kv_heads = keys.maybe_integer({"num_key_value_heads"}, kHeads).value_or(config.heads);
  if (config.heads % config.kv_heads != 0) {
    keys.refuse("num_key_value_heads", fmt::format("a divisor of num_attention_heads ({})", config.heads));
  }
  const auto head_dim = keys.maybe_integer({"head_dim"}, kHeadDim);
  if (!head_dim && family.head_dim == 0 && config.hidden % config.heads != 0) {
    keys.refuse("hidden_size", fmt::format("a multiple of num_attention_heads ({}) when head_dim is absent", config.heads));
  }
  config.head_dim = head_dim ? *head_dim : family.head_dim ? family.head_dim : config.hidden / config.heads;
  if (config.head_dim % 2 != 0 || config.head_dim < 2) keys.refuse("head_dim", "an even number: rotary embeddings turn pairs");
  config.qk_norm = family.qk_norm && keys.flag({"qk_norm"}, true);
  const bool bias = keys.flag({"attention_bias", "qkv_bias"}, false);
  config.attention_bias = family.qkv_bias_always || bias;
  config.attention_output_bias = !family.qkv_bias_always && bias;
}

void read_experts(const ConfigKeys& keys, const Family& family, ModelConfig& config) {
  config.experts = keys.uniform_integer({"num_experts", "num_local_experts", "n_routed_experts"}, kExperts);
  config.sparse = read_sparse_layers(keys, config);
  if (std::find(config.sparse.begin(), config.sparse.end(), true) == config.sparse.end()) return;
  if (config.experts * config.layers > kMostExpertsOfAllLayers) {
    keys.refuse(keys.has({"num_experts"}) ? "num_experts" : "num_local_experts",
                fmt::format("at most {} experts in all {} layers", kMostExpertsOfAllLayers, config.layers));
  }
  config.top_k = keys.uniform_integer({"num_experts_per_tok", "moe_topk", "num_experts_per_token"}, {1, config.experts});
  config.expert_intermediate = keys.uniform_integer({"moe_intermediate_size", "expert_hidden_dim"}, kIntermediate);
  if (family.type == ModelType::kHyV3) {
    for (const char* name : {"moe_router_use_sigmoid", "moe_router_enable_expert_bias"}) {
      if (!keys.flag({name}, true)) keys.refuse(name, "true: hy_v3 routes by sigmoid scores with an expert bias");
    }
    config.sigmoid_router = true;
    config.norm_topk_prob = keys.flag({"route_norm", "norm_topk_prob"}, true);
    config.router_scaling = keys.positive({"router_scaling_factor", "routed_scaling_factor", "route_scale"}, 2.826);
    config.shared_experts = keys.maybe_uniform_integer({"num_shared_experts", "num_shared_expert", "n_shared_experts"}, kSharedExperts).value_or(1);
  } else {
    config.norm_topk_prob = keys.flag({"norm_topk_prob"}, false);
  }
}

std::vector<int64_t> read_eos(const ConfigKeys& keys) {
  const Json* value = keys.find({"eos_token_id"});
  if (!value) return {};
  if (value->is_array()) return *keys.maybe_integers({"eos_token_id"});
  return {keys.integer({"eos_token_id"}, {-1, INT32_MAX})};
}

/// Stop tokens of both files, those of config.json first. Some configs write -1 for "none".
std::vector<int64_t> read_stop_tokens(const ConfigKeys& keys, const std::filesystem::path& folder) {
  std::vector<int64_t> tokens = read_eos(keys);
  const std::filesystem::path file = folder / "generation_config.json";
  if (std::filesystem::exists(file)) {
    const Json generation = read_json(file);
    for (const int64_t token : read_eos(ConfigKeys(file, generation))) tokens.push_back(token);
  }
  std::vector<int64_t> unique;
  for (const int64_t token : tokens) {
    if (token >= 0 && std::find(unique.begin(), unique.end(), token) == unique.end()) unique.push_back(token);
  }
  return unique;
}

std::string read_dtype(const ConfigKeys& keys) {
  std::string dtype = keys.maybe_text({"dtype", "torch_dtype"}).value_or("bfloat16");
  if (dtype.starts_with("torch.")) dtype = dtype.substr(6);
  if (dtype == "auto") dtype = "bfloat16";
  if (dtype != "bfloat16" && dtype != "float16" && dtype != "float32") {
    keys.refuse(keys.has({"dtype"}) ? "dtype" : "torch_dtype", "bfloat16, float16 or float32");
  }
  return dtype;
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& folder, QuantizedConfig quantized) {
  const std::filesystem::path file = folder / "config.json";
  if (!std::filesystem::exists(file)) {
    throw DataError(fmt::format("{}: no such file; expected the config.json of a Hugging Face model\nhint: is {} a model folder?", file.string(),
                                folder.string()));
  }
  ModelConfig config;
  config.raw = read_json(file);
  const ConfigKeys keys(file, config.raw);
  const Family& family = find_family(keys);
  if (quantized == QuantizedConfig::kRefused) refuse_quantized(keys, file);
  refuse_unsupported(keys);

  config.type = family.type;
  config.model_type = family.name;
  config.vocabulary = keys.integer({"vocab_size"}, kVocabulary);
  config.hidden = keys.integer({"hidden_size"}, kHidden);
  config.layers = keys.integer({"num_hidden_layers"}, kLayers);
  config.max_position = keys.maybe_integer({"max_position_embeddings"}, kPositions).value_or(family.max_position);
  config.norm_eps = keys.positive({"rms_norm_eps"}, family.norm_eps);
  config.tied_head = keys.flag({"tie_word_embeddings"}, false);
  config.mlp_bias = (family.type == ModelType::kLlama || family.type == ModelType::kHyV3) && keys.flag({"mlp_bias"}, false);
  config.dtype = read_dtype(keys);
  read_attention(keys, family, config);
  refuse_sliding_window(keys, config);
  config.sparse.assign(config.layers, false);
  if (family.mixture) read_experts(keys, family, config);
  const bool some_dense = std::find(config.sparse.begin(), config.sparse.end(), false) != config.sparse.end();
  if (some_dense) config.intermediate = keys.integer({"intermediate_size"}, kIntermediate);
  config.rope = read_rope(keys, file, family.rope_theta, config.max_position);
  config.eos = read_stop_tokens(keys, folder);
  return config;
}

}  // namespace scalewright
