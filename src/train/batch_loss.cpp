#include "train/batch_loss.h"

namespace scalewright {

LossResult batch_loss(const Decoder& decoder, const LossSection& options, const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& teacher_head,
                      const LocalBatch& batch, double scale) {
  const at::Tensor labels = batch.labels.to(student.device());
  if (decoder.compute().deterministic)   // the head is whole on every rank
    return distillation_loss(decoder.compute(), options, student, teacher, decoder.head(), teacher_head, batch.own(labels), scale);
  return distillation_loss(decoder.compute(), options, student, teacher, decoder.head(), teacher_head, labels, scale, {&decoder.mesh().tp(), batch.layout.tp_rows});
}

}  // namespace scalewright
