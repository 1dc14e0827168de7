#include "app/plan_estimate.h"


namespace scalewright {
namespace {

/// Adds up one rank's projections.
class RankEstimator {
 public:
  RankEstimator(const ModelConfig& model, const Config& config, const QuantPlan& plan, at::ScalarType compute, const Mesh& mesh)
      : model_(model), config_(config), plan_(plan), mesh_(mesh), width_(static_cast<double>(c10::elementSize(compute))),
        accurate_(compute == at::kDouble ? 8.0 : 4.0), unit_(column_unit(plan)) {
    const TrainSection& train = config.train;
    all_ = static_cast<double>(train.micro_batch * config.data.seq_len) / mesh.cp().size();
    own_ = all_ / mesh.tp().size();
    const int64_t global = train.global_batch > 0 ? train.global_batch : train.micro_batch * mesh.dp().size();
    micro_batches_ = std::max<int64_t>(1, global / (train.micro_batch * mesh.dp().size()));
    in_flight_ = std::min<int64_t>(micro_batches_, mesh.pp().size() - mesh.pp().rank());
  }

  RankEstimate run(const std::vector<ProjectionSpec>& specs, const PlannedMachine& machine) {
    result_.layers = stage_layers(model_, mesh_);
    result_.experts = {0, model_.experts};
    for (const ProjectionSpec& spec : specs)
      if (spec.layer >= result_.layers.begin && spec.layer < result_.layers.end) add_projection(spec);
    for (int64_t layer = result_.layers.begin; layer < result_.layers.end; ++layer) add_layer(layer);
    add_ends();
    finish(machine);
    return result_;
  }

 private:
  bool recomputed(int64_t layer) const {
    const int64_t first = config_.train.recompute_layers;
    return config_.train.recompute && (first == 0 || layer - result_.layers.begin < first);
  }
  double passes(int64_t layer) const { return recomputed(layer) ? 5.0 : 4.0; }   // forward of teacher and student, two products backward (and again)

  void add_projection(const ProjectionSpec& spec) {
    const ProjectionPart part = projection_part(model_, spec, mesh_, unit_, config_.parallel.deterministic == "layout");
    if (spec.routed()) result_.experts = part.experts;
    const double values = static_cast<double>(part.experts.size()) * static_cast<double>(part.local_rows()) * static_cast<double>(part.columns.size());
    const double bias = spec.has_bias ? static_cast<double>(part.local_rows()) : 0.0;
    result_.parameters += static_cast<int64_t>(values + bias);
    RankBytes& bytes = result_.bytes;
    bytes.weights += (values + bias) * width_;
    // Tokens that meet each weight: all of the tp group's, or a routed expert's share of them.
    const double tokens = spec.routed() ? own_ * static_cast<double>(model_.top_k) / static_cast<double>(part.experts.size()) : all_;
    result_.flops += passes(spec.layer) * 2.0 * values * tokens * static_cast<double>(micro_batches_);
    const auto format = plan_.formats.find(spec.name);
    if (format == plan_.formats.end()) return;
    bytes.quantized += values * width_;
    const double group = static_cast<double>(format->second->weight.group ? format->second->weight.group : spec.columns);
    const double scales = values / group;
    scales_ += scales;
    bytes.scales += scales * (2 * accurate_ + 4.0);   // alpha, its gradient, the float32 reference
    bytes.optimizer += scales * 2 * accurate_ / (part.replicas ? part.replicas->size() : 1);
  }

  /// Activations that autograd keeps of one layer, in values of t (own) and T (tp group) tokens.
  void add_layer(int64_t layer) {
    const double hidden = static_cast<double>(model_.hidden), tp = mesh_.tp().size(), cp = mesh_.cp().size();
    const double q = static_cast<double>(model_.heads * model_.head_dim) / tp;
    const double kv = static_cast<double>(std::max<int64_t>(1, model_.kv_heads / mesh_.tp().size()) * model_.head_dim);
    const bool sparse = model_.sparse[static_cast<std::size_t>(layer)];
    result_.parameters += 2 * model_.hidden + (model_.qk_norm ? 2 * model_.head_dim : 0);
    double kept = own_ * 2 * hidden + linear_input(layer, Place::kQkv, hidden);   // inputs of the norms, of q, k and v
    kept += all_ * (2 * q + kv) + all_ * cp * 2 * kv + all_ * q;           // q, k before and after norm and rope, gathered k and v, output
    const Format* output = format_of(layer, Place::kO);
    if (output && output->activation) kept += all_ * q;                    // the quantized output
    double sent = tp > 1 ? 2 * own_ * (tp - 1) * hidden : 0.0;             // to qkv, from o
    sent += cp > 1 ? all_ * (cp - 1) * 2 * kv : 0.0;
    result_.flops += passes(layer) * 2.0 * 2.0 * all_ * q * (static_cast<double>(config_.data.seq_len) / 2) * static_cast<double>(micro_batches_);
    if (sparse) {
      const double routed = own_ * static_cast<double>(model_.top_k), inner = static_cast<double>(model_.expert_intermediate);
      result_.parameters += model_.experts * (model_.hidden + (model_.sigmoid_router ? 1 : 0));
      result_.bytes.weights += static_cast<double>(model_.experts * model_.hidden) * accurate_;
      kept += routed * (hidden * (1 + copies(layer, Place::kExpertGateUp)) + inner * (2 + copies(layer, Place::kExpertDown)));
      if (mesh_.ep().size() > 1) {
        sent += 2 * routed * hidden * (mesh_.ep().size() - 1) / mesh_.ep().size();
      }
      if (model_.shared_experts > 0) kept += dense_mlp(layer, Place::kSharedGateUp, Place::kSharedDown, inner * static_cast<double>(model_.shared_experts), hidden, tp, sent);
    } else {
      kept += dense_mlp(layer, Place::kGateUp, Place::kDown, static_cast<double>(model_.intermediate), hidden, tp, sent);
    }
    layer_kept_ = std::max(layer_kept_, kept * width_);
    result_.bytes.activations += static_cast<double>(in_flight_) * (recomputed(layer) ? own_ * hidden : kept) * width_;
    result_.sent_bytes += 4.0 * sent * width_ * static_cast<double>(micro_batches_);
  }

  double dense_mlp(int64_t layer, Place gate_up, Place down, double inner, double hidden, double tp, double& sent) const {
    if (tp > 1) sent += 2 * own_ * (tp - 1) * hidden;
    return linear_input(layer, gate_up, hidden) + all_ * (2 + copies(layer, down)) * inner / tp;
  }

  const Format* format_of(int64_t layer, Place place) const {
    const auto found = plan_.formats.find(projection_name(layer, place));
    return found == plan_.formats.end() ? nullptr : found->second;
  }

  /// How often backward keeps a linear's input: not at all without a scale to train; as it was multiplied; and as it was before quantization
  /// where the quantizer drops gradients out of range.
  double copies(int64_t layer, Place place) const {
    const Format* format = format_of(layer, place);
    if (!format) return 0;
    const bool clips = format->activation && (format->activation->layout == ScaleLayout::kTwoLevelBlock || plan_.numerics != Numerics::kDeploy);
    return clips ? 2 : 1;
  }

  /// The same in values: quantized by this rank for its own tokens, multiplied with those of all tp ranks.
  double linear_input(int64_t layer, Place place, double width) const {
    const double n = copies(layer, place);
    return width * ((n > 1 ? own_ : 0) + (n > 0 ? all_ : 0));
  }

  /// Embedding, head, loss, what passes between stages, and gradients between replicas.
  void add_ends() {
    const double hidden = static_cast<double>(model_.hidden);
    const IndexRange vocabulary = split_range(model_.vocabulary, 1, mesh_.tp().size(), mesh_.tp().rank());
    const double table = static_cast<double>(vocabulary.size()) * hidden;
    const int stage = mesh_.pp().rank(), stages = mesh_.pp().size();
    if (stage == 0) {
      result_.parameters += vocabulary.size() * model_.hidden;
      result_.bytes.weights += table * 2.0;   // as stored
    }
    if (stage == stages - 1) {
      if (!model_.tied_head || stage > 0) result_.parameters += vocabulary.size() * model_.hidden;
      result_.parameters += model_.hidden;
      result_.bytes.weights += table * width_;
      result_.flops += 3.0 * 2.0 * table * all_ * static_cast<double>(micro_batches_);
      const double chunk = static_cast<double>(std::min<int64_t>(config_.train.loss.chunk, static_cast<int64_t>(all_)));
      // Logits of teacher and student, and a copy in the compute dtype where that is another.
      result_.bytes.buffers += chunk * static_cast<double>(model_.vocabulary) * (2 * accurate_ + (width_ == accurate_ ? 0 : width_)) + 3 * all_ * hidden * width_;
      if (mesh_.tp().size() > 1) result_.sent_bytes += 3.0 * all_ * static_cast<double>(vocabulary.size()) * accurate_ * static_cast<double>(micro_batches_);
    }
    // Messages to the next stage (activations) and to the one before (gradients) that may not have left yet.
    if (stages > 1) result_.bytes.buffers += 2.0 * stages * own_ * hidden * width_ * ((stage > 0) + (stage < stages - 1));
    if (stages > 1) result_.sent_bytes += 3.0 * own_ * hidden * width_ * static_cast<double>(micro_batches_);
    if (mesh_.data().size() > 1) result_.sent_bytes += 2.0 * scales_ * accurate_;
    result_.bytes.buffers += 2 * own_ * hidden * width_ + (config_.train.recompute ? layer_kept_ : 0.0);
  }

  void finish(const PlannedMachine& machine) {
    const double stages = mesh_.pp().size(), micro = static_cast<double>(micro_batches_);
    const double bubble = (micro + stages - 1) / micro;
    result_.seconds = (result_.flops / machine.flops + result_.sent_bytes / machine.bandwidth) * bubble;
  }

  const ModelConfig& model_;
  const Config& config_;
  const QuantPlan& plan_;
  const Mesh& mesh_;
  double width_, accurate_;
  int64_t unit_;
  int64_t micro_batches_ = 1, in_flight_ = 1;
  double all_ = 0, own_ = 0;   // tokens of a micro-batch: of the tp group, of this rank
  double scales_ = 0, layer_kept_ = 0;
  RankEstimate result_;
};

}  // namespace

RankEstimate estimate_rank(const ModelConfig& model, const std::vector<ProjectionSpec>& specs, const Config& config, const QuantPlan& plan, at::ScalarType compute, const Mesh& mesh,
                           const PlannedMachine& machine) {
  return RankEstimator(model, config, plan, compute, mesh).run(specs, machine);
}

}  // namespace scalewright
