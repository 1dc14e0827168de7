// A decoder-only transformer: embedding, layers, final norm, head; with and without its quantizers.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "model/config.h"
#include "model/projection.h"
#include "model/quant_plan.h"
#include "model/token_layout.h"
#include "model/weights.h"
#include "text/batch.h"

namespace scalewright {

class Layer;

/// Keys and values of B sequences during generation, grown as needed.
struct KvCache {
  std::vector<at::Tensor> k, v;        // per layer [B, C, Hkv, D]
  std::vector<int64_t> lengths;        // [B] valid positions
  /// Keeps only the sequences `rows` (indices into the current B), in that order.
  void select(const std::vector<int64_t>& rows);
};

struct ForwardOptions {
  Mode mode = Mode::kTeacher;
  bool recompute = false;              // keep only layer inputs, compute layers again in backward
  int64_t recompute_layers = 0;        // the first so many of the layers that are here; 0: all
  std::map<std::string, at::Tensor>* taps = nullptr;  // filled with hidden states by name: "layers.N" (output of layer N), "norm"
  KvCache* fill_cache = nullptr;       // prefill: one document a sequence; keys and values are stored (one rank)
  at::Tensor input = {};               // [t,H] from the pipeline stage before; undefined on the first stage
};

class Decoder {
 public:
  /// Loads and stacks the weights in the compute dtype: on several ranks the part of them that `mesh` gives to this one. `unit`: tensor
  /// parallelism cuts input features at multiples of it (column_unit() of the plan that will be quantized with).
  Decoder(const ModelConfig& config, const ModelWeights& weights, const Compute& compute, const Mesh& mesh, int64_t unit = 1);
  ~Decoder();

  const ModelConfig& config() const { return config_; }
  const Compute& compute() const { return compute_; }

  /// Creates quantizers (reference scales by min-max). One plan at a time.
  void quantize(const QuantPlan& plan);
  bool needs_calibration() const;      // a static activation global has no reference yet

  const Mesh& mesh() const { return mesh_; }
  bool first_stage() const { return mesh_.pp().rank() == 0; }
  bool last_stage() const { return mesh_.pp().rank() == mesh_.pp().size() - 1; }
  /// Weights, norms and embeddings that this rank holds.
  int64_t local_parameters() const;

  /// One process: hidden states after the final norm [T,H] (compute dtype).
  at::Tensor forward(const Batch& batch, const ForwardOptions& options);
  /// This rank's tokens [t,H]: after the final norm on the last pipeline stage, else what the next stage takes as its input.
  at::Tensor forward(const std::shared_ptr<const LocalBatch>& batch, const ForwardOptions& options);
  /// One more token a sequence (no gradient): ids [B] -> hidden [B,H]; the cache advances by one.
  at::Tensor step(const at::Tensor& ids_B, KvCache& cache, Mode mode);
  /// This tp rank's rows of the head [v,H] (all of them with compute.deterministic) in the compute dtype (undefined but on the last stage).
  const at::Tensor& head() const { return head_; }
  /// hidden [T,H] -> logits [T,V] in compute.accurate() (one process).
  at::Tensor logits(const at::Tensor& hidden_TH) const;
  /// The logits [T,V] of the whole batch of `total` tokens on every rank of the last stage; all of them must call it.
  at::Tensor gather_logits(const at::Tensor& hidden_tH, const LocalBatch& batch, int64_t total) const;

  /// After backward: every trainable's gradient becomes that of the whole batch. All ranks of the stage must call it.
  void sum_gradients();
  /// After calibration: references of all ranks become one. All ranks of the stage must call it.
  void share_calibration();
  /// Whether a layer-free name of a state belongs to a layer of another pipeline stage.
  bool of_other_stage(const std::string& name) const;

  std::vector<Projection*> projections();
  std::vector<Trainable> trainables();
  /// Call after an optimizer step.
  void refresh();

  /// Quantizer state by layout-free name: "alpha/<trainable>" and "ref/<input quantizer>" (static activation references); whole tensors
  /// of this stage's layers. All ranks of the stage must call it.
  std::map<std::string, at::Tensor> quantizer_state();
  /// Whole tensors of all layers in any layout; those of other stages are left out. Missing or extra names, or other shapes, are a
  /// DataError naming all of them and `source`.
  void load_quantizer_state(const std::map<std::string, at::Tensor>& state, const std::string& source);

 private:
  at::Tensor embed(const LocalBatch& batch) const;

  ModelConfig config_;
  Compute compute_;
  Mesh mesh_;
  int64_t first_layer_ = 0;
  IndexRange vocabulary_;              // rows of embedding and head that are here
  std::vector<std::unique_ptr<Layer>> layers_;
  at::Tensor embedding_, final_norm_, head_;
  RopeFrequencies rope_;
};

/// Parameters of the whole model (weights, norms, embeddings), for FLOPs and reports.
int64_t parameter_count(const ModelConfig& config);
/// Forward FLOPs of one token at context length `context` (GQA and MoE aware; 2 per multiply-add).
double forward_flops_per_token(const ModelConfig& config, double context);

}  // namespace scalewright
