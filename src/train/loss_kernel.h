// The distillation loss of one token, fused over the vocabulary.
#pragma once
#include <span>

#include <ATen/core/Tensor.h>

#include "train/token_loss.h"

namespace scalewright {

/// student, teacher [n,V]: contiguous CPU logits, float32 or float64 (the arithmetic is of the same width, sums are float64);
/// `teacher` may be undefined (lm only). labels [n] in 0..V-1. With options.gradient `student` is overwritten with
/// scale * d(loss)/d(student logits). A NaN or infinite logit gives a non-finite loss. Parallel over tokens; a token's result
/// depends on its own row only.
void token_losses_cpu(const TokenLossOptions& options, at::Tensor& student_TV, const at::Tensor& teacher_TV, std::span<const int64_t> labels,
                      std::span<TokenLoss> out);

/// Divergences over a short list of outcomes, from logs of probabilities (all float64): the top-k path.
struct OutcomeLoss {
  double fkl = 0, rkl = 0, jsd = 0;
};
/// Fills `gradient` [n] with d/d(student logit of the outcome) of forward*fkl + reverse*rkl + jensen*jsd.
OutcomeLoss outcome_loss(std::span<const double> log_student, std::span<const double> log_teacher, double jsd_beta, double forward,
                         double reverse, double jensen, std::span<double> gradient);

}  // namespace scalewright
