// Whom the student learns from.
#pragma once
#include "model/decoder.h"
#include "text/batch.h"

namespace scalewright {

class Teacher {
 public:
  virtual ~Teacher() = default;
  /// Hidden states after the final norm [T,H] at the batch's positions, without gradient. A stored teacher finds them by
  /// (sample_index, position).
  virtual at::Tensor hidden(const Batch& batch) = 0;
  /// The head [V,H] that belongs to them.
  virtual at::Tensor head() = 0;
};

/// The student's own weights with every quantizer off.
class SelfTeacher : public Teacher {
 public:
  explicit SelfTeacher(Decoder& decoder) : decoder_(decoder) {}
  at::Tensor hidden(const Batch& batch) override;
  at::Tensor head() override { return decoder_.head(); }

 private:
  Decoder& decoder_;
};

}  // namespace scalewright
