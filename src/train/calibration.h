// What must be known about activations before the student can run.
#pragma once
#include "model/decoder.h"
#include "text/dataset.h"

namespace scalewright {

/// Runs the first `rows` rows of `source` (all when it has fewer), `batch` at a time, through the unquantized model while the input
/// quantizers observe their amax (algorithm max). Without gradient. All ranks must call it.
/// Throws DataError when `source` has no rows.
void calibrate(Decoder& decoder, const RowSource& source, int64_t rows, int64_t batch);

}  // namespace scalewright
