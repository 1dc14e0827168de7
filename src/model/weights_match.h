// Holding the tensors of the files against what the architecture needs: exactly that, or an error that lists everything.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/projection_spec.h"
#include "model/weights_shards.h"

namespace scalewright {

/// "model.layers.N.mlp.experts.gate_up_proj" [E,2I,H] or "...down_proj" [E,H,I]: one tensor for all experts, as transformers 5
/// keeps them. Its layout is that of the stacked weight. `spec` must be routed.
std::string fused_expert_name(const ProjectionSpec& spec);

struct MatchedWeights {
  std::map<std::string, FileTensor> projections;   // weights by canonical name, per module or fused
  std::map<std::string, FileTensor> others;        // norms, embeddings, head, routers, biases by canonical name
  std::map<std::string, FileTensor> pass_through;  // by canonical name
  at::ScalarType dtype = at::kBFloat16;            // of all projections
};

/// Throws DataError with all that is missing, left over, misshapen, of another dtype or there twice.
MatchedWeights match_weights(const std::filesystem::path& folder, const Shards& shards, const ModelConfig& config,
                             const std::vector<ProjectionSpec>& specs);

}  // namespace scalewright
