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
  std::map<std::string, at::Tensor>* taps = nullptr;  // filled with hidden states by name: "layers.N" (output of layer N), "norm"
  KvCache* fill_cache = nullptr;       // prefill: one document a sequence; keys and values are stored
};

class Decoder {
 public:
  /// Loads and stacks the weights in the compute dtype. `mesh`: which part of the model this rank holds (one rank: all).
  Decoder(const ModelConfig& config, const ModelWeights& weights, const Compute& compute, const Mesh& mesh);
  ~Decoder();

  const ModelConfig& config() const { return config_; }
  const Compute& compute() const { return compute_; }

  /// Creates quantizers (reference scales by min-max). One plan at a time.
  void quantize(const QuantPlan& plan);
  bool needs_calibration() const;      // a static activation global has no reference yet

  /// Hidden states after the final norm [T,H] (compute dtype).
  at::Tensor forward(const Batch& batch, const ForwardOptions& options);
  /// One more token a sequence (no gradient): ids [B] -> hidden [B,H]; the cache advances by one.
  at::Tensor step(const at::Tensor& ids_B, KvCache& cache, Mode mode);
  /// The head [V,H] in the compute dtype.
  const at::Tensor& head() const { return head_; }
  /// hidden [T,H] -> logits [T,V] in compute.accurate().
  at::Tensor logits(const at::Tensor& hidden_TH) const;

  std::vector<Projection*> projections();
  std::vector<Trainable> trainables();
  /// Call after an optimizer step.
  void refresh();

  /// Quantizer state by layout-free name: "alpha/<trainable>" and "ref/<input quantizer>" (static activation references).
  std::map<std::string, at::Tensor> quantizer_state();
  /// Missing or extra names, or other shapes, are a DataError naming all of them and `source`.
  void load_quantizer_state(const std::map<std::string, at::Tensor>& state, const std::string& source);

 private:
  ModelConfig config_;
  Compute compute_;
  std::vector<std::unique_ptr<Layer>> layers_;
  at::Tensor embedding_, final_norm_, head_;
  RopeFrequencies rope_;
};

/// Parameters of the whole model (weights, norms, embeddings), for FLOPs and reports.
int64_t parameter_count(const ModelConfig& config);
/// Forward FLOPs of one token at context length `context` (GQA and MoE aware; 2 per multiply-add).
double forward_flops_per_token(const ModelConfig& config, double context);

}  // namespace scalewright
