#include "train/calibration.h"

#include "base/error.h"
#include "model/pipeline.h"

namespace scalewright {

void calibrate(Decoder& decoder, const RowSource& source, int64_t rows, int64_t batch) {
  const int64_t count = std::min(rows, source.size());
  if (count < 1) throw DataError("calibration: no rows\nhint: set quantize.calibration or quantize.calibration_rows");
  at::NoGradGuard no_grad;
  ForwardOptions options;
  options.mode = Mode::kCalibrate;
  for (int64_t begin = 0; begin < count; begin += batch) 
    forward_stage(decoder, std::make_shared<const LocalBatch>(localize(make_ordered_batch(source, begin, std::min(batch, count - begin)), decoder.mesh())), options);
  decoder.share_calibration();
}

}  // namespace scalewright
