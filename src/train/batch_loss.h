// The distillation loss of a model's own hidden states, in whatever layout they lie.
#pragma once
#include "model/decoder.h"
#include "train/loss.h"

namespace scalewright {

/// distillation_loss of this rank's hidden states [t,H] (the last pipeline stage's; all of its ranks must call it) for the labels of `batch`.
/// `teacher` [t,H] and its head may be undefined (lm only).
LossResult batch_loss(const Decoder& decoder, const LossSection& options, const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& teacher_head,
                      const LocalBatch& batch, double scale);

}  // namespace scalewright
