// How far the student is from its teacher on a fixed set.
#pragma once
#include <map>

#include "model/decoder.h"
#include "text/dataset.h"
#include "train/loss.h"
#include "train/teacher.h"

namespace scalewright {

/// Means over valid tokens, always over the whole vocabulary at temperature 1, so that runs with other loss settings compare.
struct ValidationScores {
  int64_t tokens = 0;
  double loss = 0;                 // lm_weight * lm + distill_weight * the configured divergence
  double lm = 0, fkl = 0, rkl = 0, cakld = 0;
  double fkl_stderr = 0;           // over tokens
  double top1 = 0;                 // share of tokens whose most likely prediction is the teacher's
  std::map<std::string, double> values() const;
};

/// All rows of `source` in file order, `batch` at a time, without gradient.
ValidationScores validate(Decoder& decoder, Teacher& teacher, const RowSource& source, const LossSection& loss, int64_t batch);

}  // namespace scalewright
