// Rotary embedding parameters of a config.json, in the hub's spelling and in that of transformers 5.
#include "model/config_parts.h"

namespace scalewright {

namespace {

/// The object that holds the parameters: transformers 5 may nest it by kind of layer.
const Json& rope_object(const ConfigKeys& keys, const char* name, const Json& nothing) {
  const Json* object = keys.find({name});
  if (!object) return nothing;
  if (!object->is_object()) keys.refuse(name, "an object");
  const auto nested = object->find("full_attention");
  return nested != object->end() && nested->is_object() ? *nested : *object;
}

void read_llama3(const ConfigKeys& rope, RopeConfig& config) {
  config.factor = rope.positive({"factor"});
  config.low_freq_factor = rope.positive({"low_freq_factor"});
  config.high_freq_factor = rope.positive({"high_freq_factor"});
  if (config.low_freq_factor >= config.high_freq_factor) rope.refuse("high_freq_factor", "more than low_freq_factor");
}

void read_yarn(const ConfigKeys& rope, int64_t max_position, RopeConfig& config) {
  const double implied = static_cast<double>(max_position) / static_cast<double>(config.original_max_position);
  config.factor = rope.positive({"factor"}, implied);
  config.beta_fast = rope.positive({"beta_fast"}, 32.0);
  config.beta_slow = rope.positive({"beta_slow"}, 1.0);
  if (config.beta_fast < config.beta_slow) rope.refuse("beta_fast", "at least beta_slow");
  if (rope.has({"attention_factor"})) config.attention_factor = rope.positive({"attention_factor"});
  config.mscale = rope.maybe_number({"mscale"}).value_or(0.0);
  config.mscale_all_dim = rope.maybe_number({"mscale_all_dim"}).value_or(0.0);
  config.truncate = rope.flag({"truncate"}, true);
}

}  // namespace

RopeConfig read_rope(const ConfigKeys& keys, const std::filesystem::path& file, double default_theta, int64_t max_position) {
  const Json nothing = Json::object();
  // As in transformers, a rope_scaling that is present wins.
  const char* const inside = keys.has({"rope_scaling"}) ? "rope_scaling" : "rope_parameters";
  const ConfigKeys rope(file, rope_object(keys, inside, nothing), inside);
  RopeConfig config;
  config.type = rope.maybe_text({"rope_type", "type"}).value_or("default");
  config.theta = rope.positive({"rope_theta"}, keys.positive({"rope_theta"}, default_theta));
  if (config.theta <= 1) (rope.has({"rope_theta"}) ? rope : keys).refuse("rope_theta", "more than 1");
  for (const ConfigKeys* place : {&keys, &rope}) {
    if (place->maybe_number({"partial_rotary_factor"}).value_or(1.0) != 1.0) {
      place->refuse("partial_rotary_factor", "1", "rotary embeddings over a part of the head are not implemented");
    }
  }
  constexpr ConfigKeys::Range kPositions{1, int64_t{1} << 40};
  // As in transformers: a top-level key wins, then the object's own, then the model's length.
  const auto own = rope.maybe_integer({"original_max_position_embeddings"}, kPositions);
  const auto top = keys.maybe_integer({"original_max_position_embeddings"}, kPositions);
  config.original_max_position = top ? *top : own ? *own : max_position;
  if (config.type == "linear") {
    config.factor = rope.positive({"factor"});
  } else if (config.type == "llama3") {
    read_llama3(rope, config);
  } else if (config.type == "yarn") {
    read_yarn(rope, max_position, config);
  } else if (config.type != "default") {
    rope.refuse(rope.has({"rope_type"}) ? "rope_type" : "type", "default, linear, llama3 or yarn",
                "frequencies that change with the length of the input (dynamic, longrope) are not implemented");
  }
  return config;
}

}  // namespace scalewright
