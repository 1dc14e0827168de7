#include "app/trained_scales.h"

#include "base/error.h"
#include "base/json.h"
#include "store/checkpoint.h"
#include "store/files.h"
#include "train/train_state.h"

namespace scalewright {
namespace {

// recover's choice, from its summary or its export marker.
std::optional<int64_t> judged_step(const fs::path& run) {
  for (const char* name : {"summary.json", "exported.json"}) {
    if (!fs::exists(run / name)) continue;
    const Json json = read_json(run / name);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer()) return json["step"].get<int64_t>();
  }
  return std::nullopt;
}

int64_t choose_step(const fs::path& run, const std::optional<int64_t>& asked) {
  const fs::path folder = run / "checkpoints";
  if (asked) return *asked;
  if (const auto judged = judged_step(run)) return *judged;
  const std::optional<int64_t> newest = latest_checkpoint(folder);
  if (!newest) throw DataError(fmt::format("{}: no complete checkpoint\nhint: --run names a run directory of train or recover", run.string()));
  const Json state = load_checkpoint(checkpoint_path(folder, *newest)).state;
  const int64_t best = state_from_json(state, checkpoint_path(folder, *newest).string()).best_step;
  return best > 0 && fs::exists(checkpoint_path(folder, best)) ? best : *newest;
}

}  // namespace

TrainedScales open_trained_scales(const TrainedScalesChoice& choice) {
  if (choice.run.empty() == choice.checkpoint.empty()) throw UserError("give either --run DIR or --checkpoint DIR/checkpoints/step_N");
  fs::path step_folder;
  TrainedScales trained;
  if (!choice.checkpoint.empty()) {
    step_folder = fs::path(choice.checkpoint) / "";
    step_folder = step_folder.parent_path();
    trained.run = step_folder.parent_path().parent_path();
  } else {
    trained.run = choice.run;
    step_folder = checkpoint_path(trained.run / "checkpoints", choose_step(trained.run, choice.step));
  }
  if (!fs::exists(step_folder / "manifest.json")) throw DataError(fmt::format("{}: no checkpoint there (manifest.json is missing)", step_folder.string()));
  if (!fs::exists(trained.run / "config.yaml")) throw DataError(fmt::format("{}: no config.yaml, so not a run directory", trained.run.string()));
  Config config = load_config((trained.run / "config.yaml").string(), {});
  if (!choice.model.empty()) config.model.path = choice.model;
  const fs::path folder = resolve_model_folder(config.model.path);
  trained.model = read_model_config(folder);
  trained.weights = std::make_unique<ModelWeights>(folder, trained.model);
  trained.plan = make_quant_plan(config.quantize, config.train.act_scales, projections(trained.model));
  Checkpoint checkpoint = load_checkpoint(step_folder);
  trained.step = checkpoint.state.value("step", int64_t{0});
  if (!choice.step) trained.warning = damaged_checkpoints(trained.run / "checkpoints");
  for (auto& [name, tensor] : checkpoint.tensors)
    if (name.starts_with("alpha/") || name.starts_with("ref/")) trained.state[name] = tensor;
  return trained;
}

}  // namespace scalewright
