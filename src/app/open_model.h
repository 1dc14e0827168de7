// A model from the command line: loaded, and quantized the way the options say.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "app/command.h"
#include "export/quantized_folder.h"
#include "model/decoder.h"
#include "text/dataset.h"
#include "text/worker.h"

namespace scalewright {

/// The options of commands that compute with a model and, maybe, its quantized student.
struct ModelChoice {
  std::string model;         // Hugging Face folder
  std::string format;        // quantize now, with min-max scales
  std::string calibration;   // data for that
  std::string scales;        // a run, a checkpoint or a file of trained scales
  std::string quantized;     // an exported folder
};
std::vector<Option> model_options(ModelChoice& choice);

/// The checked choice: nothing is loaded yet. Throws UserError for contradictory options, DataError for a broken folder.
class ModelSource {
 public:
  ModelSource(const ModelChoice& choice, const Config& config);

  const std::filesystem::path& folder() const { return folder_; }
  const ModelConfig& config() const { return model_; }
  bool quantized() const { return plan_.has_value(); }
  /// "none", "nvfp4"
  std::string quantization() const;
  /// How the quantized model came to be, for the log and scores.json: format, numerics, scales, calibration.
  OrderedJson describe() const;

  /// The text side, or nullptr when the folder has no tokenizer.
  std::unique_ptr<TextWorker> open_text() const;
  /// The model in memory with its quantizers ready: `prompts` is what to calibrate on where activation scales need it and the choice
  /// names no data.
  std::unique_ptr<Decoder> open_decoder(Context& context, const RowSource& prompts) const;

 private:
  void calibrate_model(Context& context, Decoder& decoder, const RowSource& prompts) const;

  ModelChoice choice_;
  Config settings_;                     // whose quantize section holds
  std::filesystem::path folder_;
  ModelConfig model_;
  std::optional<QuantPlan> plan_;       // none: BF16 only
  std::shared_ptr<const QuantizedFolder> exported_;   // --quantized
  std::map<std::string, at::Tensor> scales_;
};

/// The model of a folder without quantizers.
std::unique_ptr<Decoder> open_plain_decoder(Context& context, const std::filesystem::path& folder);

}  // namespace scalewright
