// Every linear of a model by its layout-free name, and the Hugging Face tensors that it is stacked from.
#pragma once
#include <string>
#include <vector>

#include "model/config.h"

namespace scalewright {

/// Which linear of a layer. Quantizer places beyond weights and inputs (K and V after rope) join here when formats need them.
enum class Place { kQkv, kO, kGateUp, kDown, kExpertGateUp, kExpertDown, kSharedGateUp, kSharedDown };

/// Rows row_begin..row_end of expert `expert` of a stacked weight are one Hugging Face module.
struct Piece {
  std::string module;     // "model.layers.0.self_attn.q_proj" or "model.layers.0.mlp.experts.3.gate_proj" (hub names)
  int64_t expert = 0;
  int64_t row_begin = 0, row_end = 0;
};

/// One quantizable linear: a stacked weight [experts, rows, columns].
struct ProjectionSpec {
  std::string name;        // layers.N.{qkv,o,gate_up,down}[.experts|.shared]
  std::string input_name;  // name of its input quantizer: layers.N.act1.experts / layers.N.act2.experts, else name + ".input"
  int64_t layer = 0;
  Place place = Place::kQkv;
  int64_t experts = 1, rows = 0, columns = 0;
  bool has_bias = false;
  std::vector<Piece> pieces;
  bool routed() const { return place == Place::kExpertGateUp || place == Place::kExpertDown; }
};

/// layers.N.{qkv,o,...}
std::string projection_name(int64_t layer, Place place);

/// All quantizable linears in layer order (qkv, o, then the MLP's). router, lm_head, embeddings and norms are not among them.
std::vector<ProjectionSpec> projections(const ModelConfig& config);

}  // namespace scalewright
