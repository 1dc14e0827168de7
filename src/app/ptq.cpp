// ptq: quantizes and exports without training.
#include "app/command.h"
#include "app/scratch_folder.h"
#include "base/error.h"
#include "export/export.h"
#include "export/verify.h"
#include "model/decoder.h"
#include "store/files.h"
#include "text/rows.h"
#include "train/calibration.h"

namespace scalewright {
namespace {

class PtqCommand : public Command {
 public:
  std::string name() const override { return "ptq"; }
  std::string summary() const override { return "quantizes and exports, no training"; }
  std::vector<Option> options() override {
    return {{"--model", "Hugging Face folder of the BF16 model (default: model.path of the configuration)", &model_},
            {"--format", "nvfp4, nvfp4a16, w4a16, w8a8, fp8 or w4afp8 (default: quantize.format of the configuration)", &format_},
            {"--calib", "calibration data: JSON lines, token shards, or safetensors with input_ids", &calibration_},
            {"--algorithm", "calibration algorithm", &algorithm_, false, {"max"}},
            {"--kv-cache", "format of the KV cache", &kv_cache_, false, {"none"}},
            {"--to", "dialect of the exported folder", &to_, false, {"compressed-tensors"}},
            {"--shard-size", "largest weight file", &shard_size_},
            {"--out", "the folder to write", &out_, true}};
  }
  ExitCode run(Context& context) override;

 private:
  Config resolve(const CommonOptions& common) const;
  void calibrate_inputs(Context& context, Decoder& decoder, const Config& config, const std::filesystem::path& folder) const;

  std::string model_, format_, calibration_, algorithm_ = "max", kv_cache_ = "none", to_ = "compressed-tensors", shard_size_ = "5GB", out_;
};

Config PtqCommand::resolve(const CommonOptions& common) const {
  Config config = command_config(common);
  if (!model_.empty()) config.model.path = model_;
  if (!format_.empty()) config.quantize.format = format_;
  if (!calibration_.empty()) config.quantize.calibration = calibration_;
  if (config.model.path.empty()) throw UserError("--model is missing\nhint: the folder of the BF16 model (config.json, *.safetensors)");
  find_format(config.quantize.format);
  return config;
}

/// quantize.calibration, else the training data.
std::vector<std::string> calibration_files(const Config& config) {
  return config.quantize.calibration.empty() ? config.data.train : std::vector<std::string>{config.quantize.calibration};
}

void PtqCommand::calibrate_inputs(Context& context, Decoder& decoder, const Config& config, const std::filesystem::path& folder) const {
  if (!decoder.needs_calibration()) return;
  const ScratchFolder scratch;
  const auto rows = open_rows(folder, calibration_files(config), config.data, scratch.path(), decoder.config().vocabulary, context.log);
  context.log.info("calibrating on {} rows", std::min(rows->size(), config.quantize.calibration_rows));
  calibrate(decoder, *rows, config.quantize.calibration_rows, config.train.micro_batch);
}

/// Whether an input needs a range that only data can tell.
bool static_globals(const QuantPlan& plan) {
  return std::any_of(plan.formats.begin(), plan.formats.end(), [&](const auto& entry) {
    const auto& activation = entry.second->activation;
    return plan.numerics == Numerics::kDeploy && activation && activation->layout == ScaleLayout::kTwoLevelBlock;
  });
}

// Every quantizer, its scales' range and its input global: what a reviewer looks at first.
OrderedJson quantizer_summary(Decoder& decoder) {
  OrderedJson quantizers = OrderedJson::object();
  for (Projection* projection : decoder.projections()) {
    if (!projection->quantized()) continue;
    const WeightQuantizer& weight = *projection->weight_quantizer();
    OrderedJson entry = {{"format", std::string(projection->format()->name)},
                         {"shape", {projection->spec().experts, projection->spec().rows, projection->spec().columns}},
                         {"scales", weight.ref().numel()},
                         {"reference_min", weight.ref().min().item<double>()},
                         {"reference_max", weight.ref().max().item<double>()}};
    if (weight.global().defined()) entry["global_max"] = weight.global().max().item<double>();
    ActivationQuantizer* input = projection->input_quantizer();
    entry["input"] = !input ? "none" : input->has_global() ? "static global" : "dynamic";
    if (input && input->has_global() && input->ref().defined()) entry["input_amax"] = input->ref().max().item<double>() * 6 * 448;
    quantizers[projection->spec().name] = entry;
  }
  return quantizers;
}

ExitCode PtqCommand::run(Context& context) {
  const Config config = resolve(context.common);
  const std::filesystem::path folder = resolve_model_folder(config.model.path);
  const ModelConfig model = read_model_config(folder);
  const ModelWeights weights(folder, model);
  const QuantPlan plan = make_quant_plan(config.quantize, config.train.act_scales, projections(model));
  const ExportOptions options{parse_size(shard_size_)};
  check_export_target(out_, folder);
  const std::vector<std::string> calibration = calibration_files(config);
  if (static_globals(plan) && calibration.empty())
    throw UserError(fmt::format("{} needs calibration data for its static input scales\nhint: --calib FILE (JSON lines, token shards, or safetensors with input_ids), or "
                                "quantize.calibration or data.train in the configuration", config.quantize.format));
  if (context.common.dry_run) {
    return would(context, fmt::format("quantize {} projections of {} to {} and write {}", plan.formats.size(), folder.string(), config.quantize.format, out_));
  }
  OrderedJson summary = {{"model", folder.string()}, {"format", config.quantize.format}, {"algorithm", algorithm_}};
  QuantizerState state;
  {
    Decoder decoder(model, weights, context.compute, context.mesh);
    decoder.quantize(plan);
    calibrate_inputs(context, decoder, config, folder);
    for (const auto& [name, tensor] : decoder.quantizer_state()) state[name] = tensor.clone();
    summary["quantizers"] = quantizer_summary(decoder);
  }
  const ExportReport report = export_checkpoint(model, weights, plan, state, out_, options, context.log);
  const VerifyReport verified = verify_export(model, weights, plan, state, out_);
  for (const std::string& fault : verified.faults) context.log.error("verify: {}", fault);
  summary["bytes"] = report.bytes;
  summary["tensors"] = report.tensors;
  summary["shards"] = report.shards;
  summary["verified"] = verified.ok();
  summary["out"] = out_;
  write_file_atomic(std::filesystem::path(out_) / "quant_summary.json", summary.dump(2) + "\n");
  if (context.common.json) print_json(summary);
  else
    print_text(fmt::format("quantized {} projections to {}: {} tensors, {:.1f} MB in {} ({})\n", plan.formats.size(), config.quantize.format, report.tensors,
                           static_cast<double>(report.bytes) / 1e6, out_, verified.ok() ? "verified bit for bit" : "NOT VERIFIED"));
  return verified.ok() ? ExitCode::kOk : ExitCode::kVerdictFailed;
}

}  // namespace

std::unique_ptr<Command> make_ptq_command() { return std::make_unique<PtqCommand>(); }

}  // namespace scalewright
