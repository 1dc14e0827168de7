// The fake quantizer of a linear's input: dynamic per token (int8, E4M3), or NVFP4 blocks under a global scale.
#pragma once
#include <vector>

#include "base/exact_sum.h"
#include "comm/group.h"
#include "ops/compute.h"
#include "quant/format.h"

namespace scalewright {

struct ActivationScheme;

/// Ranks with which an input's statistics are shared; nullptr: all is here.
struct ActivationSharing {
  const Group* columns = nullptr;   // other columns of the same tokens
  const Group* all = nullptr;       // other tokens or columns of the same global micro-batch
  const Group* experts = nullptr;   // other tokens of the same experts
};

/// For one projection's input. NVFP4 globals:
///  deploy: one static global per projection and layer, from calibration (observe), learnable on request;
///  mcore_qad dense: the amax of the whole call's tensor, no state; mcore_qad experts: one learnable global per expert, its
///  reference from the first student batch.
class ActivationQuantizer {
 public:
  /// `experts` = 0 for a dense input, else the number of experts whose sorted tokens the input holds.
  ActivationQuantizer(const std::string& name, const TensorFormat& format, Numerics numerics, int64_t experts, const Compute& compute,
                      const ActivationSharing& sharing = {});

  /// Fake-quantized x [T,K] in x's dtype; differentiable (straight-through) in x and in alpha. `offsets` [E+1] for experts, else
  /// empty. All sharing ranks must call it. Throws DataError when a static global is needed and nothing was observed.
  at::Tensor forward(const at::Tensor& x_TK, const std::vector<int64_t>& offsets);

  /// With compute.deterministic: the gradient of alpha since the last call, over all ranks, which must all call it. (alpha.grad stays
  /// undefined then.)
  at::Tensor take_gradient();

  /// Calibration: widens the running amax (deploy NVFP4; nothing for dynamic formats).
  void observe(const at::Tensor& x_TK);
  /// After calibration: the references of all sharing ranks become one. All of them must call it.
  void share_observed();

  bool has_global() const;                       // whether ref()/alpha() exist in this format and numerics
  at::Tensor& alpha() { return alpha_; }         // [1] or [E], compute.accurate(); a leaf; requires_grad when learnable
  /// float32 [1] or [E]: reference global S as a multiplier (amax/2688); undefined until observed or first used.
  const at::Tensor& ref() const { return ref_; }
  void set_ref(const at::Tensor& ref) { ref_ = ref; }
  /// The effective multiplier S = ref * clamp(alpha, .25, 4), float32, on the CPU; what the exporter writes is its reciprocal (CT divisor).
  at::Tensor global() const;
  /// Deploy exports the divisor input_global_scale G = fl(1/S) and computes with fl(1/G), so that what is trained is what is served.
  at::Tensor exported_divisor() const;

 private:
  void check_known() const;   // throws DataError when no range was observed
  void set_globals(ActivationScheme& scheme, const at::Tensor& x_TK);
  at::Tensor first_references(const at::Tensor& x_TK, const std::vector<int64_t>& offsets) const;

  std::string name_;
  TensorFormat format_;
  Numerics numerics_;
  int64_t experts_;
  Compute compute_;
  ActivationSharing sharing_;
  at::Tensor alpha_, ref_;
  std::vector<ExactSum> sums_;   // of d(loss)/dS, by element of alpha, with compute.deterministic
};

}  // namespace scalewright
