// Writes a folder that serving engines load: quantized weights with exactly the scales that were trained.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "base/log.h"
#include "model/quant_plan.h"
#include "model/weights.h"

namespace scalewright {

using QuantizerState = std::map<std::string, at::Tensor>;   // as Decoder::quantizer_state names it

struct ExportOptions {
  int64_t shard_bytes = 5'000'000'000;
};

struct ExportReport {
  int64_t tensors = 0, bytes = 0, shards = 0, quantized_modules = 0;
};

/// "5GB", "500MB", "123456" -> bytes. Throws UserError.
int64_t parse_size(const std::string& text);

/// The tensors of one projection as they are written, by file name: packed codes, scales, globals; or the plain weight where `plan`
/// leaves it in high precision. Throws DataError when `state` lacks a scale.
std::map<std::string, at::Tensor> exported_tensors(const ProjectionSpec& spec, const ModelWeights& weights, const QuantPlan& plan,
                                                   const QuantizerState& state);

/// Throws UserError unless `out` may be written: absent, empty, or an earlier export (config.json of a quantized model and nothing but
/// plain files), and not the model's own folder.
void check_export_target(const std::filesystem::path& out, const std::filesystem::path& model);

/// Streams one projection at a time into `out`, which appears whole or not at all; the same input gives the same bytes. An existing
/// export in `out` is replaced only at the end. Throws UserError for anything else in `out`, and for mcore_qad numerics (no engine multiplies by such scales).
ExportReport export_checkpoint(const ModelConfig& config, const ModelWeights& weights, const QuantPlan& plan, const QuantizerState& state,
                               const std::filesystem::path& out, const ExportOptions& options, Log& log);

}  // namespace scalewright
