// AdamW over the trainables, with the safeguards of a training step.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/projection.h"

namespace scalewright {

/// Decoupled weight decay (Loshchilov and Hutter, 2019), with torch.optim.AdamW's arithmetic: p *= 1 - lr*wd;
/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr/(1-b1^t) * m / (sqrt(v/(1-b2^t)) + eps). A trainable without a gradient has
/// gradient zero. State lives in each trainable's own dtype (float32, or float64 in float64 computation).
class AdamW {
 public:
  /// `group_factor`: learning-rate factor by Trainable::lr_group; groups beyond it have factor 1.
  AdamW(const TrainSection& options, std::vector<Trainable> trainables, std::vector<double> group_factor = {});

  /// sqrt of the sum of squares of all gradients over all ranks of `world` (which must all call it): each element counts once, whoever
  /// holds it, and who that is changes no bit.
  double gradient_norm(const Group* world = nullptr) const;
  /// All ranks must call it. One update at learning rate `lr` with gradients multiplied by min(1, clip/norm) (clip 0: as they are). `norm` must be finite.
  void step(double lr, double norm);
  void clear_gradients();

  int64_t updates() const { return updates_; }
  /// "adam.m/<name>", "adam.v/<name>": whole tensors of this pipeline stage. All ranks of the stage must call it.
  std::map<std::string, at::Tensor> state() const;
  /// Names missing, left over or of other shape are a DataError naming them and `source`.
  /// `left_out`: names that belong to another pipeline stage.
  void load_state(const std::map<std::string, at::Tensor>& state, int64_t updates, const std::string& source,
                  const std::function<bool(const std::string&)>& left_out = {});

 private:
  /// Ranks that hold the same scales share the work and the moments: each updates its share of the elements and tells the others.
  struct Slot {
    Trainable trainable;
    const Group* replicas;          // nullptr: this rank alone
    std::vector<int64_t> shares;    // elements of each replica
    at::Tensor m, v;                // of the own share, flat
    IndexRange own() const;
    at::Tensor own_elements(const at::Tensor& all) const;
    at::Tensor all_elements(const at::Tensor& share) const;
  };
  double beta1_, beta2_, eps_, weight_decay_, clip_;
  std::vector<double> group_factor_;
  std::vector<Slot> slots_;   // in name order
  int64_t updates_ = 0;       // applied, not counting skipped steps
};

/// What to do when a step's numbers are not finite: the whole step is skipped (weights, moments and update count stay as they
/// are) and counted; too many in a row end the run. (AngelSlim zeroes single non-finite entries and goes on with the rest.)
class NonFiniteGuard {
 public:
  explicit NonFiniteGuard(int64_t limit, int64_t skipped = 0, int64_t in_a_row = 0) : limit_(limit), skipped_(skipped), in_a_row_(in_a_row) {}
  /// Whether the step may be applied. Throws NonFiniteError after `limit` skipped steps in a row.
  bool accept(int64_t step, double loss, double norm);
  int64_t skipped() const { return skipped_; }
  int64_t in_a_row() const { return in_a_row_; }

 private:
  int64_t limit_, skipped_, in_a_row_;
};

}  // namespace scalewright
