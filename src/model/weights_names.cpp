#include "model/weights_names.h"

#include <charconv>

namespace scalewright {

namespace {

/// "model.layers.12.mlp.gate.weight" -> layer 12 and "mlp.gate.weight".
struct LayerName {
  int64_t layer;
  std::string rest;
};

constexpr std::string_view kLayers = "model.layers.";

std::optional<LayerName> split_layer(const std::string& name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  const char* begin = name.data() + kLayers.size();
  const char* end = name.data() + name.size();
  int64_t layer = 0;
  const auto [dot, error] = std::from_chars(begin, end, layer);
  const bool canonical = dot - begin == 1 || *begin != '0';   // "007" is nobody's layer
  if (error != std::errc() || !canonical || layer < 0 || dot == end || *dot != '.') return std::nullopt;
  return LayerName{layer, std::string(dot + 1, end)};
}

/// Checkpoints of bare models (AutoModel) have no "model." prefix.
std::string with_prefix(const std::string& name) {
  for (const char* bare : {"layers.", "embed_tokens.", "norm.", "rotary_emb."}) {
    if (name.starts_with(bare)) return "model." + name;
  }
  return name;
}

/// hy_v3 as the hub, transformers and older conversions name it.
std::string hy_v3_canonical(const std::string& rest) {
  if (rest == "mlp.router.gate.weight" || rest == "mlp.router.weight") return "mlp.gate.weight";
  for (const char* owner : {"mlp.", "mlp.gate.", "mlp.router.", "mlp.router.gate."}) {
    for (const char* name : {"expert_bias", "e_score_correction_bias"}) {
      if (rest == fmt::format("{}{}", owner, name)) return "mlp.expert_bias";
    }
  }
  constexpr std::string_view kShared = "mlp.shared_experts.";
  if (rest.starts_with(kShared)) return "mlp.shared_mlp." + rest.substr(kShared.size());
  return rest;
}

std::string fused_canonical(const std::string& rest) {
  if (rest == "mlp.experts.gate_up_proj.weight") return "mlp.experts.gate_up_proj";
  if (rest == "mlp.experts.down_proj.weight") return "mlp.experts.down_proj";
  return rest;
}

}  // namespace

WeightName canonical_name(const std::string& in_file, const ModelConfig& config) {
  using Kind = WeightName::Kind;
  if (in_file.starts_with("mtp.") || in_file.starts_with("model.mtp.")) return {Kind::kPassThrough, in_file};
  const std::string name = with_prefix(in_file);
  if (name.ends_with("rotary_emb.inv_freq")) return {Kind::kDropped, name};
  const auto split = split_layer(name);
  if (!split) return {Kind::kModel, name};
  std::string rest = fused_canonical(split->rest);
  if (config.type == ModelType::kHyV3) rest = hy_v3_canonical(rest);
  const Kind kind = split->layer < config.layers ? Kind::kModel : Kind::kPassThrough;
  return {kind, fmt::format("{}{}.{}", kLayers, split->layer, rest)};
}

std::string written_name(const std::string& canonical, const ModelConfig& config) {
  const auto split = split_layer(canonical);
  if (config.type == ModelType::kHyV3 && split && split->rest == "mlp.gate.weight") {
    return fmt::format("{}{}.mlp.router.gate.weight", kLayers, split->layer);
  }
  return canonical;
}

}  // namespace scalewright
