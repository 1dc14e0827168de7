// Where a run stands, and whose run it is: what a checkpoint remembers besides tensors.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "config/config.h"
#include "train/loss.h"

namespace scalewright {

/// Counters after `step` optimizer steps. The data position follows from the step: rows step*rows_of_step.. come next.
struct TrainState {
  int64_t step = 0;
  int64_t consumed_rows = 0;           // global sample index of the next row
  int64_t updates = 0;                 // applied steps (AdamW's t)
  int64_t skipped = 0, skipped_in_a_row = 0;
  int64_t tokens = 0;
  LossSums interval;                   // since the last log line
  int64_t best_step = 0;               // 0: none yet
  double best_score = 0;               // its validation loss
  std::map<std::string, double> validation_before, validation;   // at the start, and the last one
};

/// What must not change while a run goes on.
struct RunIdentity {
  std::string model;        // ModelWeights::content_hash
  std::string data;         // RowSource::content_hash of the training rows
  std::string validation;   // the same of the validation rows; empty: none
  std::string tokenizer;    // empty: none
  std::string dtype;        // compute dtype
};

Json to_json(const TrainState& state, const Config& config, const RunIdentity& identity);
TrainState state_from_json(const Json& json, const std::string& source);

/// Throws UserError listing every key of `config` that differs from the one the checkpoint was written with (old and new value),
/// but for keys that do not change the result (logging, saving, output, evaluation, paths whose contents are hashed; train.steps
/// under a constant schedule); DataError when the model, data, tokenizer or dtype is another.
void check_same_run(const Json& json, const Config& config, const RunIdentity& identity, const std::string& source);

}  // namespace scalewright
