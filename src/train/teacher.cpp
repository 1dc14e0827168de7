#include "train/teacher.h"

namespace scalewright {

at::Tensor SelfTeacher::hidden(const Batch& batch) {
  at::NoGradGuard no_grad;
  ForwardOptions options;
  options.mode = Mode::kTeacher;
  return decoder_.forward(batch, options);
}

}  // namespace scalewright
