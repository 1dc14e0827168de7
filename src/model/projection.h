// The one place where weights, quantizers (and later parallelism) meet: a linear, or a group of experts' linears.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
};

/// A frozen stacked weight [E,N,K] with optional bias [E,N] and quantizers. Several candidate formats may be held, one is active.
class Projection {
 public:
  Projection(ProjectionSpec spec, at::Tensor weight_ENK, at::Tensor bias_EN, at::ScalarType stored_dtype, const Compute& compute);

  const ProjectionSpec& spec() const { return spec_; }
  const at::Tensor& weight() const { return weight_; }   // compute dtype
  /// Adds a candidate format and makes it the active one.
  void add_format(const Format& format, const QuantPlan& plan);
  void set_active(std::optional<std::size_t> candidate);
  bool quantized() const { return active_.has_value(); }
  const Format* format() const;
  WeightQuantizer* weight_quantizer();                   // of the active candidate; nullptr when there is none
  const WeightQuantizer* weight_quantizer() const;
  ActivationQuantizer* input_quantizer();                // likewise; nullptr when activations stay high precision

  /// x [T,K] -> [T,N]. For experts x is sorted and `offsets` [E+1] says whose rows are whose; dense: empty. Differentiable in x and
  /// in the active quantizers' alphas; the fake-quantized weight is made once and kept until refresh().
  at::Tensor forward(const at::Tensor& x_TK, const std::vector<int64_t>& offsets, Mode mode);

  /// Drops the kept fake-quantized weight; call after alphas changed.
  void refresh();
  const at::Tensor& student_weight();                    // [E,N,K], made when absent
  /// A student's weight [E,N,K] that was made elsewhere (an exported folder), kept until refresh().
  void set_student_weight(const at::Tensor& w_ENK);

  std::vector<Trainable> trainables();

 private:
  struct Candidate {
    const Format* format;
    std::unique_ptr<WeightQuantizer> weight;
    std::unique_ptr<ActivationQuantizer> input;
  };
  ProjectionSpec spec_;
  at::Tensor weight_, bias_;            // compute dtype
  at::Tensor source_;                   // what quantizers see: weight_ itself unless the compute dtype would round it
  at::ScalarType stored_dtype_;
  Compute compute_;
  std::vector<Candidate> candidates_;
  std::optional<std::size_t> active_;
  at::Tensor student_weight_;
};

}  // namespace scalewright
