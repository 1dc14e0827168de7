// The one place where weights, quantizers (and later parallelism) meet: a linear, or a group of experts' linears.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/canonical_linear.h"
#include "model/projection_part.h"
#include "model/projection_spec.h"
#include "model/quant_plan.h"
#include "ops/compute.h"
#include "quant/activation_quantizer.h"
#include "quant/weight_quantizer.h"

namespace scalewright {

/// How a forward pass treats the quantizers.
enum class Mode {
  kTeacher,      // off: the BF16 model
  kStudent,      // on
  kWeightsOnly,  // weight quantizers on, activation quantizers off
  kCalibrate,    // off, but inputs are observed
};

/// One trainable tensor.
struct Trainable {
  enum class Kind { kWeightScale, kActivationScale, kWeight };
  std::string name;      // layout-free: "layers.0.qkv", "layers.1.act1.experts"
  at::Tensor tensor;     // a leaf
  Kind kind;
  int lr_group = 0;
  std::shared_ptr<const ScalePlacement> placement = {};  // which part of the whole tensor this is; none: all of it
};

/// What one projection needs to know of the mesh.
struct ProjectionPlace {
  ProjectionPart part;
  const Mesh* mesh = nullptr;   // outlives the projection
};

/// A frozen stacked weight [E,N,K] with optional bias [E,N] and quantizers; on several ranks the part of it that `place` says. Several
/// candidate formats may be held, one is active.
class Projection {
 public:
  Projection(ProjectionSpec spec, ProjectionPlace place, at::Tensor weight_ENK, at::Tensor bias_EN, at::ScalarType stored_dtype, const Compute& compute);

  const ProjectionSpec& spec() const { return spec_; }
  const ProjectionPart& part() const { return place_.part; }
  const at::Tensor& weight() const { return weight_; }   // compute dtype
  /// Adds a candidate format and makes it the active one.
  void add_format(const Format& format, const QuantPlan& plan);
  void set_active(std::optional<std::size_t> candidate);
  bool canonical() const { return compute_.deterministic; }
  bool quantized() const { return active_.has_value(); }
  const Format* format() const;
  WeightQuantizer* weight_quantizer();                   // of the active candidate; nullptr when there is none
  const WeightQuantizer* weight_quantizer() const;
  ActivationQuantizer* input_quantizer();                // likewise; nullptr when activations stay high precision

  /// x [T,K] -> [T,N]. For experts x is sorted and `routed` says whose rows are whose. Differentiable in x and in the active
  /// quantizers' alphas; the fake-quantized weight is made once and kept until refresh(). Under tensor parallelism `layout` says how the
  /// tokens are split: weights cut by rows take this rank's tokens [t,K] and give this rank's features of all tokens [T,n]; weights cut by
  /// columns take this rank's features of all tokens [T,k] and give whole features of its tokens [t,N]. With compute.deterministic
  /// (canonical_linear.h) every projection takes and gives whole features of this rank's tokens, and alphas get their gradients from
  /// take_gradients() alone.
  at::Tensor forward(const at::Tensor& x_TK, const RoutedRows& routed, Mode mode, const LayoutPtr& layout);

  /// With compute.deterministic, after the last backward of a step: the alphas' gradients, over all ranks. All ranks of the stage must
  /// call it.
  void take_gradients();

  /// Drops the kept fake-quantized weight; call after alphas changed.
  void refresh();
  const at::Tensor& student_weight();                    // [E,N,K], made when absent
  /// A student's weight [E,N,K] that was made elsewhere (an exported folder), kept until refresh().
  void set_student_weight(const at::Tensor& w_ENK);

  std::vector<Trainable> trainables();
  /// Where the scales of the active weight and input quantizer lie; nullptr on one rank.
  const std::shared_ptr<const ScalePlacement>& weight_placement() const { return candidates_[*active_].weight_placement; }
  const std::shared_ptr<const ScalePlacement>& input_placement() const { return candidates_[*active_].input_placement; }

 private:
  struct Candidate {
    const Format* format;
    std::unique_ptr<WeightQuantizer> weight;
    std::unique_ptr<ActivationQuantizer> input;
    std::shared_ptr<const ScalePlacement> weight_placement, input_placement;
    std::unique_ptr<RowSums> gradient;   // of the weight's alpha, with compute.deterministic
  };
  void place_scales(Candidate& candidate) const;

  at::Tensor canonical_product(const at::Tensor& x_tK, const RoutedRows& routed, bool student, const LayoutPtr& layout);
  at::Tensor multiply(const at::Tensor& x_TK, const std::vector<int64_t>& offsets, bool student);
  at::Tensor own_columns(const at::Tensor& x_TK) const;
  ActivationSharing input_sharing() const;

  ProjectionSpec spec_;
  ProjectionPlace place_;
  at::Tensor weight_, bias_;            // compute dtype
  at::Tensor source_;                   // what quantizers see: weight_ itself unless the compute dtype would round it
  at::ScalarType stored_dtype_;
  Compute compute_;
  std::vector<Candidate> candidates_;
  std::optional<std::size_t> active_;
  at::Tensor student_weight_;
};

}  // namespace scalewright
