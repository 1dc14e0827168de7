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
  Layer(const ModelConfig& config, const ModelWeights& weights, int64_t index, const std::vector<ProjectionSpec>& specs, const Compute& compute,
        const Mesh& mesh, int64_t unit);

  /// This rank's tokens [t,H] -> [t,H].
  at::Tensor forward(const at::Tensor& x_tH, const LayoutPtr& layout, const RopeTable& rope, Mode mode, LayerCache* fill);
  /// The same, keeping only x: the layer is computed again in backward.
  at::Tensor forward_recomputed(const at::Tensor& x_tH, const LayoutPtr& layout, const RopeTable& rope, Mode mode);
  at::Tensor step(const at::Tensor& x_BH, const std::vector<int64_t>& lengths, const RopeTable& rope, Mode mode, LayerCache cache);
  void collect(std::vector<Projection*>& projections);
  int64_t parameters() const { return parameters_; }   // that this rank holds

 private:
  at::Tensor feed_forward(const at::Tensor& x_tH, Mode mode, const LayoutPtr& layout);

  double eps_;
  int64_t parameters_ = 0;
  at::Tensor input_norm_, post_attention_norm_;
  std::unique_ptr<AttentionBlock> attention_;
  std::variant<std::unique_ptr<DenseMlp>, std::unique_ptr<MoeMlp>> mlp_;
};

}  // namespace scalewright
