#include "app/command_line.h"

#include <fmt/ranges.h>

#include "base/near.h"

namespace scalewright {

std::vector<Option> common_options(CommonOptions& common) {
  return {
      {"-c,--config", "YAML file of the run", &common.config},
      {"-o", "sets a key of the configuration: key.path=value (repeatable)", &common.overrides},
      {"--json", "one JSON document on standard output", &common.json},
      {"--threads", "CPU threads; 0: all cores", &common.threads},
      {"--device", "where tensors live", &common.device, false, {"cpu", "cuda"}},
      {"--dtype",
       "type of activations and matrix products",
       &common.dtype,
       false,
       {"auto", "float64", "float32", "bfloat16"}},
      {"--seed", "seed of every random choice (train.seed)", &common.seed},
      {"--dry-run", "check everything and say what would be done", &common.dry_run},
      {"--profile", "tell where the time went", &common.profile},
      {"--tp", "tensor-parallel ranks", &common.tp},
      {"--ep", "expert-parallel ranks", &common.ep},
      {"--cp", "context-parallel ranks", &common.cp},
      {"--pp", "pipeline-parallel ranks", &common.pp},
      {"--dp", "data-parallel ranks", &common.dp},
      {"--sp", "sequence parallelism", &common.sp},
  };
}

std::vector<std::string> option_flags(const Option& option) {
  std::vector<std::string> flags;
  if (!option.name.starts_with('-')) return flags;
  for (std::size_t begin = 0; begin < option.name.size();) {
    const auto end = std::min(option.name.find(',', begin), option.name.size());
    flags.push_back(option.name.substr(begin, end - begin));
    begin = end + 1;
  }
  return flags;
}

bool takes_value(const Option& option) { return !std::holds_alternative<bool*>(option.target); }

std::string refuse_choice(const std::string& word, const std::vector<std::string>& choices) {
  const auto near = nearest(word, choices);
  return fmt::format("'{}' is not one of {}", word, fmt::join(choices, ", ")) +
         (near ? fmt::format(" (did you mean '{}'?)", *near) : "");
}

std::vector<Option> mcore_qad_options(McoreQadPaths& paths) {
  return {
      {"--save-path", "the run directory (output.path), as AngelSlim calls it", &paths.save_path},
      {"--model-path", "the model (model.path), as AngelSlim calls it", &paths.model_path},
  };
}

bool takes_mcore_qad_paths(const std::string& command) { return command == "train" || command == "recover"; }

}  // namespace scalewright
