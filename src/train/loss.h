// The distillation loss from hidden states, in token chunks: [tokens, vocabulary] never exists.
#pragma once
#include "base/exact_sum.h"
#include "comm/group.h"
#include "config/config.h"
#include "ops/compute.h"
#include "train/token_loss.h"

namespace scalewright {

DistillType find_distill_type(const std::string& name);   // fkl, kl, rkl, cakld, jsd; throws UserError

/// Sums over valid tokens (not means), so that ranks and micro-batches add up; float64.
struct LossSums {
  double loss = 0, lm = 0, fkl = 0, rkl = 0, cakld = 0;
  int64_t tokens = 0;
  double fkl_squared = 0;          // sum of squares per token: standard errors
  int64_t top1_agree = 0;          // tokens whose argmax equals the teacher's
  LossSums& operator+=(const LossSums& other);
};

/// The same while they are being made: which rank and micro-batch has which tokens does not change a bit of them.
struct ExactLossSums {
  ExactSum loss, lm, fkl, rkl, cakld, fkl_squared;
  int64_t tokens = 0, top1_agree = 0;
  ExactLossSums& operator+=(const ExactLossSums& other);
  /// Over all ranks of `group`, which must all call it.
  LossSums total(const Group& group) const;
};

/// Tensor parallelism: hidden states are this rank's tokens [t,H], labels those of all its tp ranks [T], heads this rank's rows [v,H].
struct LossSplit {
  const Group* tp = nullptr;         // nullptr: one rank
  std::vector<int64_t> tp_rows;      // tokens of each rank
};

/// student, teacher: hidden states after the final norm [T,H]; head_student, head_teacher [V,H] (usually the same tensor); labels [T]
/// (-100: no loss). The differentiable scalar is  scale * sum over valid tokens of (lm_weight*lm + distill_weight*distill*temperature^2),
/// with scale = 1 / (valid tokens of the whole optimizer step). Gradients go to `student` (and the student head if it requires one);
/// they are computed chunk by chunk during the forward pass. Metrics lm, fkl, rkl, cakld are always reported (at the temperature).
/// cakld: confidence = teacher probability of the label at T=1. top_k: the teacher's k most likely tokens, renormalised, or with
/// `tail` one more outcome for the rest. With `split` the sums are over this rank's share of the tokens (all ranks add up to the whole)
/// and all tp ranks must call it. An undefined `teacher` means no distillation (lm only).
struct LossResult {
  at::Tensor loss;                 // [] compute.accurate(), requires grad
  ExactLossSums sums;
};
LossResult distillation_loss(const Compute& compute, const LossSection& options, const at::Tensor& student_TH, const at::Tensor& teacher_TH,
                             const at::Tensor& head_student_VH, const at::Tensor& head_teacher_VH, const at::Tensor& labels_T, double scale, const LossSplit& split = {});

}  // namespace scalewright
