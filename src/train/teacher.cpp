#include "train/teacher.h"

#include "model/pipeline.h"

namespace scalewright {

at::Tensor SelfTeacher::hidden(const std::shared_ptr<const LocalBatch>& batch) {
  at::NoGradGuard no_grad;
  ForwardOptions options;
  options.mode = Mode::kTeacher;
  const StagePass pass = forward_stage(decoder_, batch, options);
  return decoder_.last_stage() ? pass.output : at::Tensor();
}

}  // namespace scalewright
