#include "model/projection_spec.h"

#include "base/error.h"

namespace scalewright {

namespace {

const char* suffix(Place place) {
  switch (place) {
    case Place::kQkv: return "qkv";
    case Place::kO: return "o";
    case Place::kGateUp: return "gate_up";
    case Place::kDown: return "down";
    case Place::kExpertGateUp: return "gate_up.experts";
    case Place::kExpertDown: return "down.experts";
    case Place::kSharedGateUp: return "gate_up.shared";
    case Place::kSharedDown: return "down.shared";
  }
  throw BugError("a place without a name");
}

std::string input_name(int64_t layer, Place place, const std::string& name) {
  if (place == Place::kExpertGateUp) return fmt::format("layers.{}.act1.experts", layer);
  if (place == Place::kExpertDown) return fmt::format("layers.{}.act2.experts", layer);
  return name + ".input";
}

/// A part of a stacked weight: a module's last name and its rows.
struct Part {
  const char* module;
  int64_t rows;
};

class LayerProjections {
 public:
  LayerProjections(const ModelConfig& config, int64_t layer, std::vector<ProjectionSpec>& out)
      : config_(config), layer_(layer), prefix_(fmt::format("model.layers.{}.", layer)), out_(out) {}

  void attention() {
    const int64_t q = config_.heads * config_.head_dim, kv = config_.kv_heads * config_.head_dim;
    add(Place::kQkv, "self_attn.", {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}, config_.hidden, config_.attention_bias);
    add(Place::kO, "self_attn.", {{"o_proj", config_.hidden}}, q, config_.attention_output_bias);
  }

  void mlp() {
    if (!config_.sparse[layer_]) return add_mlp(Place::kGateUp, Place::kDown, "mlp.", config_.intermediate);
    const int64_t inner = config_.expert_intermediate;
    add(Place::kExpertGateUp, "mlp.experts.", {{"gate_proj", inner}, {"up_proj", inner}}, config_.hidden, false);
    add(Place::kExpertDown, "mlp.experts.", {{"down_proj", config_.hidden}}, inner, false);
    if (config_.shared_experts > 0) add_mlp(Place::kSharedGateUp, Place::kSharedDown, "mlp.shared_mlp.", inner * config_.shared_experts);
  }

 private:
  void add_mlp(Place gate_up, Place down, const std::string& module, int64_t inner) {
    add(gate_up, module, {{"gate_proj", inner}, {"up_proj", inner}}, config_.hidden, config_.mlp_bias);
    add(down, module, {{"down_proj", config_.hidden}}, inner, config_.mlp_bias);
  }

  void add(Place place, const std::string& module, const std::vector<Part>& parts, int64_t columns, bool bias) {
    ProjectionSpec spec;
    spec.name = projection_name(layer_, place);
    spec.input_name = input_name(layer_, place, spec.name);
    spec.layer = layer_;
    spec.place = place;
    spec.experts = spec.routed() ? config_.experts : 1;
    spec.columns = columns;
    spec.has_bias = bias;
    for (const Part& part : parts) spec.rows += part.rows;
    for (int64_t expert = 0; expert < spec.experts; ++expert) {
      const std::string owner = prefix_ + module + (spec.routed() ? fmt::format("{}.", expert) : "");
      int64_t row = 0;
      for (const Part& part : parts) {
        spec.pieces.push_back({owner + part.module, expert, row, row + part.rows});
        row += part.rows;
      }
    }
    out_.push_back(std::move(spec));
  }

  const ModelConfig& config_;
  int64_t layer_;
  std::string prefix_;
  std::vector<ProjectionSpec>& out_;
};

}  // namespace

std::string projection_name(int64_t layer, Place place) { return fmt::format("layers.{}.{}", layer, suffix(place)); }

std::vector<ProjectionSpec> projections(const ModelConfig& config) {
  std::vector<ProjectionSpec> specs;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    LayerProjections projections(config, layer, specs);
    projections.attention();
    projections.mlp();
  }
  return specs;
}

}  // namespace scalewright
