// Everything that a configuration names, opened: the sequence that train, recover and ptq share.
#pragma once
#include <filesystem>
#include <memory>

#include "app/command.h"
#include "model/decoder.h"
#include "text/dataset.h"
#include "train/train_state.h"

namespace scalewright {

/// What is checked before anything large happens: folder, architecture, weight names and shapes, quantization plan.
struct Session {
  Config config;
  std::filesystem::path model_folder, run;   // run: output.path
  ModelConfig model;
  std::unique_ptr<ModelWeights> weights;     // mapped, not copied
  QuantPlan plan;
};

/// Throws UserError when model.path or output.path is missing, DataError for a model that does not fit.
Session open_session(const Config& config);

/// For --dry-run: the data files that the configuration names are there. Throws DataError.
void check_inputs(const Session& session);

/// Training and validation rows. Raw files are prepared into <run>/data. Without data.validation a holdout of
/// data.validation_fraction of the training rows; at most data.validation_rows rows, the same every time; none: nullptr.
struct SessionRows {
  std::unique_ptr<RowSource> train, validation;
};
SessionRows open_session_rows(const Session& session, Log& log);

/// Hashes of the model, the rows and the tokenizer (empty where there is none).
RunIdentity session_identity(const Session& session, const SessionRows& rows, const Compute& compute);

/// The decoder with its quantizers ready: from quantize.init_scales when set, else calibrated on quantize.calibration (empty: the
/// training rows) where the format needs it. `resumed`: neither, because a checkpoint will be loaded.
std::unique_ptr<Decoder> open_session_decoder(const Session& session, const Context& context, const RowSource& rows, bool resumed);

}  // namespace scalewright
