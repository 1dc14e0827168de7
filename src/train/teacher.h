// Whom the student learns from.
#pragma once
#include "model/decoder.h"

namespace scalewright {

class Teacher {
 public:
  virtual ~Teacher() = default;
  /// This rank's hidden states after the final norm [t,H], without gradient; undefined but on the last pipeline stage. All ranks that
  /// hold the model must call it.
  virtual at::Tensor hidden(const std::shared_ptr<const LocalBatch>& batch) = 0;
  /// This tp rank's rows of the head [v,H] that belongs to them.
  virtual at::Tensor head() = 0;
};

/// The student's own weights with every quantizer off.
class SelfTeacher : public Teacher {
 public:
  explicit SelfTeacher(Decoder& decoder) : decoder_(decoder) {}
  at::Tensor hidden(const std::shared_ptr<const LocalBatch>& batch) override;
  at::Tensor head() override { return decoder_.head(); }

 private:
  Decoder& decoder_;
};

}  // namespace scalewright
