#include "train/train_state.h"

#include <torch/version.h>

#include "base/error.h"
#include "base/glob.h"
#include "base/hash.h"
#include "config/schema.h"

namespace scalewright {

namespace {

constexpr int kStateVersion = 1;

/// Keys that may change between the parts of one run.
constexpr std::array<std::string_view, 17> kFreeKeys = {
    "train.log_every", "train.save_every", "train.keep_last", "train.keep_every", "train.validate_every", "train.max_skipped", "train.resume",
    "train.recompute*",                        // memory for time
    "output.*", "evaluate.*", "policy.*", "search.*", "export.*", "slurm.*",
    "parallel.*",                              // the layout does not change the result
    "model.*", "data.*"};   // identified by what they lead to

bool is_free(const std::string& key) {
  return std::any_of(kFreeKeys.begin(), kFreeKeys.end(), [&](std::string_view pattern) { return glob_match(pattern, key); });
}

void flatten(const Json& node, const std::string& path, std::map<std::string, std::string>& out) {
  if (!node.is_object()) {
    out[path] = node.dump();
    return;
  }
  for (const auto& [name, value] : node.items()) flatten(value, path.empty() ? name : path + "." + name, out);
}

/// "a.b" -> value, without the free keys.
std::map<std::string, std::string> binding_keys(const Json& config) {
  std::map<std::string, std::string> keys;
  flatten(config, "", keys);
  const auto is = [&](const char* key, const char* value) { return keys.count(key) && keys.at(key) == value; };
  const bool constant = is("train.schedule", "\"constant\"");
  // How the rows of a step are cut does not matter, but to mcore_qad's amax over a micro-batch.
  const bool cut_is_free = !is("train.global_batch", "0") && is("quantize.numerics", "\"deploy\"");
  std::erase_if(keys, [&](const auto& entry) {
    return is_free(entry.first) || (constant && entry.first == "train.steps") || (cut_is_free && entry.first == "train.micro_batch");
  });
  return keys;
}

/// JSON has no NaN: null.
Json finite_or_null(const std::map<std::string, double>& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) json[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
  return json;
}

std::map<std::string, double> nan_for_null(const Json& json) {
  std::map<std::string, double> values;
  for (const auto& [name, value] : json.items()) values[name] = value.is_null() ? std::nan("") : value.get<double>();
  return values;
}

Json config_as_json(const Config& config) { return Json::parse(config_json(config).dump()); }

std::string config_hash(const Json& config) { return hash_hex(std::string_view(Json(binding_keys(config)).dump())); }

Json sums_to_json(const LossSums& s) {
  return {{"loss", s.loss}, {"lm", s.lm}, {"fkl", s.fkl}, {"rkl", s.rkl}, {"cakld", s.cakld}, {"tokens", s.tokens},
          {"fkl_squared", s.fkl_squared}, {"top1_agree", s.top1_agree}};
}

LossSums sums_from_json(const Json& j) {
  LossSums s;
  s.loss = j.at("loss");
  s.lm = j.at("lm");
  s.fkl = j.at("fkl");
  s.rkl = j.at("rkl");
  s.cakld = j.at("cakld");
  s.tokens = j.at("tokens");
  s.fkl_squared = j.at("fkl_squared");
  s.top1_agree = j.at("top1_agree");
  return s;
}

std::map<std::string, std::pair<std::string, std::string>> identity_fields(const RunIdentity& i) {
  return {{"model_hash", {"the model's weights", i.model}},
          {"data_hash", {"the training data", i.data}},
          {"validation_hash", {"the validation data", i.validation}},
          {"tokenizer_hash", {"the tokenizer", i.tokenizer}},
          {"dtype", {"the compute dtype", i.dtype}}};
}

}  // namespace

Json to_json(const TrainState& s, const Config& config, const RunIdentity& identity) {
  const Json as_json = config_as_json(config);
  Json json = {{"step", s.step},
               {"consumed_rows", s.consumed_rows},
               {"updates", s.updates},
               {"skipped", s.skipped},
               {"skipped_in_a_row", s.skipped_in_a_row},
               {"tokens", s.tokens},
               {"interval", sums_to_json(s.interval)},
               {"best", s.best_step > 0 ? Json{{"step", s.best_step}, {"score", s.best_score}} : Json(nullptr)},
               {"validation_before", finite_or_null(s.validation_before)},
               {"validation", finite_or_null(s.validation)},
               {"seed", config.train.seed},
               {"config", as_json},
               {"config_hash", config_hash(as_json)},
               {"versions", {{"state", kStateVersion}, {"torch", TORCH_VERSION}}}};
  for (const auto& [key, field] : identity_fields(identity)) json[key] = field.second;
  return json;
}

TrainState state_from_json(const Json& json, const std::string& source) {
  try {
    const int version = json.at("versions").at("state");
    if (version != kStateVersion)
      throw DataError(fmt::format("{}: state version {}, expected {}\nhint: use the program that wrote it", source, version, kStateVersion));
    TrainState s;
    s.step = json.at("step");
    s.consumed_rows = json.at("consumed_rows");
    s.updates = json.at("updates");
    s.skipped = json.at("skipped");
    s.skipped_in_a_row = json.at("skipped_in_a_row");
    s.tokens = json.at("tokens");
    s.interval = sums_from_json(json.at("interval"));
    if (!json.at("best").is_null()) {
      s.best_step = json.at("best").at("step");
      s.best_score = json.at("best").at("score");
    }
    s.validation_before = nan_for_null(json.at("validation_before"));
    s.validation = nan_for_null(json.at("validation"));
    return s;
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("{}: not the state of a training run: {}", source, error.what()));
  }
}

void check_same_run(const Json& json, const Config& config, const RunIdentity& identity, const std::string& source) {
  std::map<std::string, std::string> before = binding_keys(json.value("config", Json::object()));
  const std::map<std::string, std::string> now = binding_keys(config_as_json(config));
  std::vector<std::string> changes;
  for (const auto& [key, value] : now) {
    const auto found = before.find(key);
    const std::string old = found == before.end() ? "absent" : found->second;
    if (old != value) changes.push_back(fmt::format("{}: was {}, is {}", key, old, value));
  }
  for (const auto& [key, value] : before)
    if (!now.count(key)) changes.push_back(fmt::format("{}: was {}, is absent", key, value));
  if (!changes.empty())
    throw UserError(fmt::format("{} was written with another configuration:\n  {}\nhint: restore these values to continue it, or choose another output folder",
                                source, fmt::join(changes, "\n  ")));
  std::vector<std::string> others;
  for (const auto& [key, field] : identity_fields(identity)) {
    const std::string old = json.value(key, std::string());
    if (old != field.second) others.push_back(fmt::format("{}: was {}, is {}", field.first, old.empty() ? "none" : old, field.second.empty() ? "none" : field.second));
  }
  if (!others.empty())
    throw DataError(fmt::format("{} belongs to a run on something else:\n  {}\nhint: restore it to continue, or choose another output folder", source,
                                fmt::join(others, "\n  ")));
}

}  // namespace scalewright
