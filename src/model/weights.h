// The weights of a Hugging Face folder: mapped shards, names matched exactly against the architecture.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/config.h"
#include "model/projection_part.h"
#include "model/projection_spec.h"

namespace scalewright {

/// Opens all shards (model.safetensors, or model.safetensors.index.json) and matches names: every weight the architecture needs
/// must be there with the right shape and a float dtype (per-expert 2-D or fused 3-D experts, hub and transformers aliases), and
/// every weight in the files must be needed or be a known pass-through (MTP layers, layers beyond num_hidden_layers, rotary
/// buffers). Throws DataError listing everything missing, left over or misshapen. Nothing is copied: tensors are views of the
/// mapping until stacked.
class ModelWeights {
 public:
  ModelWeights(const std::filesystem::path& folder, const ModelConfig& config);
  ~ModelWeights();
  ModelWeights(ModelWeights&&) noexcept;

  const std::filesystem::path& folder() const;
  /// A tensor by canonical hub name: "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight" (the embedding when tied),
  /// "model.layers.N.input_layernorm.weight", "...mlp.gate.weight" (hy_v3 too: router weight [E,H]), "...mlp.expert_bias" (hy_v3), ...
  at::Tensor tensor(const std::string& canonical) const;
  bool has(const std::string& canonical) const;
  /// The stacked weight [experts, rows, columns] of a projection in its stored dtype (one copy), and its stacked bias
  /// [experts, rows] or undefined. Throws DataError if a value is not finite, naming tensor and index.
  at::Tensor stacked(const ProjectionSpec& spec) const;
  at::Tensor stacked_bias(const ProjectionSpec& spec) const;
  /// The same of a rank's part; only that is read.
  at::Tensor stacked(const ProjectionSpec& spec, const ProjectionPart& part) const;
  at::Tensor stacked_bias(const ProjectionSpec& spec, const ProjectionPart& part) const;
  /// Stored dtype of the projections ("model dtype"): bfloat16, float16 or float32.
  at::ScalarType dtype() const;

  /// What an export copies unchanged: file name of the tensor in the hub's convention and its value (router, norms, embeddings, head,
  /// biases, pass-through layers), in name order. Projection weights are not among them.
  struct Unquantized {
    std::string name;            // the name to write
    at::ScalarType dtype;
    std::vector<int64_t> shape;
  };
  std::vector<Unquantized> unquantized() const;
  at::Tensor unquantized_tensor(const std::string& name) const;
  /// Modules (names without ".weight") with a 2-D weight among unquantized(), which an export must list as ignored: lm_head,
  /// routers, pass-through layers' linears, ...
  std::vector<std::string> unquantized_linear_modules() const;
  /// Hash over names, shapes, dtypes and contents of all weights: identity of the model (streamed, cached in memory).
  std::string content_hash() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace scalewright
