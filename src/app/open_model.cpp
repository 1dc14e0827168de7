#include "app/open_model.h"

#include <unistd.h>

#include "app/scratch_folder.h"
#include "base/error.h"
#include "store/checkpoint.h"
#include "store/manifest.h"
#include "text/rows.h"
#include "train/calibration.h"
#include "train/init_scales.h"
#include "train/resume.h"

namespace scalewright {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kCalibrationPrompts = 512;   // of the questions or prompts, evenly spread
constexpr int64_t kCalibrationBatch = 8;

void check_choice(const ModelChoice& choice) {
  if (choice.model.empty()) throw UserError("--model is missing\nhint: the folder of the BF16 model (config.json, *.safetensors)");
  const int ways = !choice.format.empty() + !choice.scales.empty() + !choice.quantized.empty();
  const bool file_of_scales = !choice.scales.empty() && !choice.format.empty() && !fs::is_directory(choice.scales) && choice.quantized.empty();
  if (ways > 1 && !file_of_scales)
    throw UserError("--format, --scales and --quantized are three ways to one quantized model; give one of them\n"
                    "hint: --scales with --format is only for a bare file of scales, which does not say its format");
  if (!choice.calibration.empty() && (choice.format.empty() || file_of_scales)) throw UserError("--calib is for --format: scales and exports are calibrated already");
  if (!choice.scales.empty() && ways == 1 && fs::is_regular_file(choice.scales))
    throw UserError(fmt::format("--scales {}: a bare file of scales does not say its format\nhint: add --format, or give the run or its checkpoint", choice.scales));
}

/// The configuration that a run wrote into its checkpoints, as far as quantizers go.
Config quantizers_of_checkpoint(const fs::path& path) {
  fs::path step = path;
  if (!fs::exists(path / kManifestName)) {
    const auto latest = latest_checkpoint(checkpoints_folder(path));
    if (!latest) throw DataError(fmt::format("{}: neither a run with checkpoints nor a checkpoint (step_N)", path.string()));
    step = checkpoint_path(checkpoints_folder(path), *latest);
  }
  const Json state = read_manifest(step / kManifestName).state;
  if (!state.contains("config") || !state["config"].contains("quantize"))
    throw DataError(fmt::format("{}: the checkpoint does not say how its model was quantized", step.string()));
  std::vector<std::string> overrides;
  for (const auto& [key, value] : state["config"]["quantize"].items()) overrides.push_back("quantize." + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  if (state["config"].contains("train") && state["config"]["train"].contains("act_scales"))
    overrides.push_back("train.act_scales=" + state["config"]["train"]["act_scales"].dump());
  return default_config(overrides);
}

}  // namespace

std::vector<Option> model_options(ModelChoice& choice) {
  return {
      {"--model", "Hugging Face folder of the BF16 model", &choice.model},
      {"--format", "quantize now with min-max scales: nvfp4, nvfp4a16, w4a16, w8a8, fp8, w4afp8", &choice.format},
      {"--calib", "data to calibrate --format on: JSON lines, token shards, or safetensors with input_ids (default: the prompts themselves)", &choice.calibration},
      {"--scales", "trained scales: a run, one of its checkpoints (step_N), or with --format a file of scales", &choice.scales},
      {"--quantized", "an exported folder", &choice.quantized},
  };
}

ModelSource::ModelSource(const ModelChoice& choice, const Config& config) : choice_(choice), settings_(config) {
  if (choice_.model.empty()) choice_.model = config.model.path;
  check_choice(choice_);
  folder_ = resolve_model_folder(choice_.model);
  model_ = read_model_config(folder_);
  if (!choice_.quantized.empty()) {
    exported_ = std::make_shared<QuantizedFolder>(choice_.quantized, model_);
    plan_ = exported_->plan();
    settings_.quantize.format = exported_->format().name;
    settings_.quantize.numerics = "deploy";
    return;
  }
  if (choice_.format.empty() && choice_.scales.empty()) return;
  if (!choice_.scales.empty()) {
    if (fs::is_directory(choice_.scales)) settings_ = quantizers_of_checkpoint(choice_.scales);
    scales_ = read_scales(choice_.scales);
  }
  if (!choice_.format.empty()) settings_.quantize.format = choice_.format;
  plan_ = make_quant_plan(settings_.quantize, settings_.train.act_scales, projections(model_));
}

std::string ModelSource::quantization() const { return plan_ ? settings_.quantize.format : "none"; }

OrderedJson ModelSource::describe() const {
  OrderedJson json = OrderedJson::object();
  if (!plan_) return json;
  json["numerics"] = settings_.quantize.numerics;
  if (exported_) json["folder"] = choice_.quantized;
  else if (!choice_.scales.empty()) json["scales"] = choice_.scales;
  else json["calibration"] = choice_.calibration.empty() ? "prompts" : choice_.calibration;
  return json;
}

std::unique_ptr<TextWorker> ModelSource::open_text() const {
  try {
    tokenizer_files_hash(folder_);
  } catch (const DataError&) {
    return nullptr;
  }
  return std::make_unique<TextWorker>(folder_);
}

std::unique_ptr<Decoder> ModelSource::open_decoder(Context& context, const RowSource& prompts) const {
  auto decoder = open_plain_decoder(context, folder_);
  if (!plan_) return decoder;
  if (exported_) {
    exported_->install(*decoder, settings_.quantize.w4afp8_rounding == "vllm");
    return decoder;
  }
  decoder->quantize(*plan_);
  if (!scales_.empty()) decoder->load_quantizer_state(scales_, choice_.scales);
  else if (decoder->needs_calibration()) calibrate_model(context, *decoder, prompts);
  return decoder;
}

void ModelSource::calibrate_model(Context& context, Decoder& decoder, const RowSource& prompts) const {
  if (!choice_.calibration.empty()) {
    const ScratchFolder scratch;
    const auto rows = open_rows(folder_, {choice_.calibration}, settings_.data, scratch.path(), model_.vocabulary, context.log);
    calibrate(decoder, *rows, settings_.quantize.calibration_rows, kCalibrationBatch);
    return;
  }
  const int64_t count = std::min(prompts.size(), kCalibrationPrompts);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i) chosen.push_back(i * prompts.size() / count);
  context.log.info("calibrating activation scales on {} of the prompts themselves; --calib FILE takes other data", count);
  // The view does not own the prompts: it ends before they do.
  const auto rows = subset_rows(std::shared_ptr<const RowSource>(&prompts, [](const RowSource*) {}), chosen);
  calibrate(decoder, *rows, count, kCalibrationBatch);
}

std::unique_ptr<Decoder> open_plain_decoder(Context& context, const std::filesystem::path& folder) {
  const ModelConfig config = read_model_config(folder);
  const ModelWeights weights(folder, config);
  return std::make_unique<Decoder>(config, weights, context.compute, context.mesh);
}

}  // namespace scalewright
