// One transformer layer: x + attention(norm(x)), then x + mlp(norm(x)).
#pragma once
#include <memory>
#include <variant>
#include <vector>

#include "model/attention_block.h"
#include "model/mlp.h"
#include "model/weights.h"

namespace scalewright {

class Layer {
 public:
  /// Loads layer `index`: `specs` are its projections in the order of projection_spec.h.
  Layer(const ModelConfig& config, const ModelWeights& weights, int64_t index, const std::vector<ProjectionSpec>& specs, const Compute& compute);

  at::Tensor forward(const at::Tensor& x_TH, const std::vector<int64_t>& offsets, const RopeTable& rope, Mode mode, LayerCache* fill);
  /// The same, keeping only x: the layer is computed again in backward.
  at::Tensor forward_recomputed(const at::Tensor& x_TH, const std::vector<int64_t>& offsets, const RopeTable& rope, Mode mode);
  at::Tensor step(const at::Tensor& x_BH, const std::vector<int64_t>& lengths, const RopeTable& rope, Mode mode, LayerCache cache);
  void collect(std::vector<Projection*>& projections);

 private:
  at::Tensor feed_forward(const at::Tensor& x_TH, Mode mode);

  double eps_;
  at::Tensor input_norm_, post_attention_norm_;
  std::unique_ptr<AttentionBlock> attention_;
  std::variant<std::unique_ptr<DenseMlp>, std::unique_ptr<MoeMlp>> mlp_;
};

}  // namespace scalewright
