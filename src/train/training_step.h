// One optimizer step's worth of gradients.
#pragma once
#include "model/decoder.h"
#include "text/dataset.h"
#include "train/loss.h"
#include "train/teacher.h"

namespace scalewright {

struct StepResult {
  LossSums sums;                   // over the valid tokens of the whole step
  int64_t tokens = 0;              // computed, valid or not
  double squared_lengths = 0;      // sum over documents of length^2: mean context for FLOPs
  double mean_loss() const { return sums.tokens > 0 ? sums.loss / static_cast<double>(sums.tokens) : 0.0; }
  double mean_context() const { return tokens > 0 ? squared_lengths / static_cast<double>(tokens) : 0.0; }
};

/// Rows of an optimizer step: train.global_batch, or micro_batch on each data-parallel rank.
int64_t rows_of_step(const TrainSection& options, int64_t data_parallel);

/// Adds to the trainables' gradients those of the mean loss over the valid tokens of rows first_row .. first_row+rows-1 of the
/// visiting order, micro_batch rows at a time on each data-parallel rank. The divisor is the whole step's count of valid tokens, so
/// how the rows are cut into micro-batches, or spread over ranks, does not matter. All ranks must call it; all get the same sums, and
/// the gradients of what they hold. Pipeline stages run one forward and one backward in turn (1F1B).
StepResult accumulate_gradients(Decoder& decoder, Teacher& teacher, const RowSource& source, const TrainSection& options, int64_t first_row, int64_t rows);

}  // namespace scalewright
