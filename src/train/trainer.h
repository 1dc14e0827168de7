// The training loop: rows in, better scales out, resumable at every step.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "base/log.h"
#include "comm/mesh.h"
#include "config/config.h"
#include "train/teacher.h"
#include "train/train_state.h"
#include "train/validation.h"

namespace scalewright {

/// What a run consists of. The decoder is quantized and calibrated (a resumed run takes both from its checkpoint).
struct TrainInputs {
  Decoder& decoder;
  Teacher& teacher;
  const RowSource& rows;
  const RowSource* validation = nullptr;
  const Config& config;
  std::filesystem::path run;       // the run folder
  const Mesh& mesh;
  Log& log;
  RunIdentity identity;
  std::function<void(int64_t step)> on_checkpoint = {};              // after a checkpoint was written, before old ones go
  std::function<std::vector<int64_t>()> pinned = {};                 // steps that must not be deleted, besides the best
};

struct TrainOutcome {
  int64_t steps = 0;               // done in all
  int64_t resumed_from = 0;        // 0: from the start
  int64_t skipped = 0;             // non-finite steps
  int64_t tokens = 0;
  double loss = 0;                 // mean of the last log interval
  double seconds = 0;              // of this part
  std::map<std::string, double> validation_before, validation;   // empty without a validation set; before: at step 0
  int64_t best_step = 0;           // the validated checkpoint with the lowest validation loss; 0: none
  double best_score = 0;
  std::filesystem::path checkpoint;
};

/// Runs (or continues) train.steps optimizer steps. Writes metrics.jsonl, tensorboard/ and checkpoints/step_N under the run folder.
/// A run that is interrupted anywhere and continued gives, bit for bit, the checkpoints and losses of an uninterrupted one.
/// Throws StoppedError after saving when SIGINT, SIGTERM or SIGUSR1 came; NonFiniteError after too many non-finite steps in a row;
/// UserError or DataError when the checkpoint to continue from belongs to another configuration, model or data.
TrainOutcome train(const TrainInputs& inputs);

}  // namespace scalewright
