// Trained scales on disk with everything that they belong to: what export and verify start from.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "export/export.h"

namespace scalewright {

/// Where they lie: a run directory or one of its checkpoints.
struct TrainedScalesChoice {
  std::string run, checkpoint, model;
  std::optional<int64_t> step;
};

struct TrainedScales {
  std::filesystem::path run;
  int64_t step = 0;
  std::string warning;   // what the caller should log: newer checkpoints that are damaged
  ModelConfig model;
  std::unique_ptr<ModelWeights> weights;
  QuantPlan plan;
  QuantizerState state;
};

/// The step is the one asked for; else what `recover` exported or judged best, else the run's best validated, else its newest.
/// Throws UserError for a missing or contradictory choice, DataError when there is no such checkpoint.
TrainedScales open_trained_scales(const TrainedScalesChoice& choice);

}  // namespace scalewright
