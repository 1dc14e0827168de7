// The names of weights: whatever a file calls a tensor, its canonical name, and the name that an export writes.
#pragma once
#include <string>

#include "model/config.h"

namespace scalewright {

struct WeightName {
  enum class Kind {
    kModel,        // belongs to the architecture, or to nothing (then it is left over)
    kPassThrough,  // multi-token-prediction layers, layers beyond num_hidden_layers: not computed, copied to exports
    kDropped,      // rotary buffers that older checkpoints saved: computed, never read
  };
  Kind kind;
  std::string canonical;
};

/// Canonical names are the hub's with a "model." prefix, except hy_v3's router, which is mlp.gate.weight as in other models. Fused
/// experts lose a ".weight" suffix.
WeightName canonical_name(const std::string& in_file, const ModelConfig& config);

/// The hub's spelling of a canonical name.
std::string written_name(const std::string& canonical, const ModelConfig& config);

}  // namespace scalewright
