// The options of a command as one table: its own, those every command takes, and how to find a misspelt one.
#pragma once
#include <string>
#include <vector>

#include "app/command.h"

namespace scalewright {

/// The options that every command takes, bound to `common`.
std::vector<Option> common_options(CommonOptions& common);

/// The spellings of an option: "-c,--config" is {"-c", "--config"}; a positional is {}.
std::vector<std::string> option_flags(const Option& option);

/// What an option has on the command line besides flags: nothing for a switch, else a value.
bool takes_value(const Option& option);

/// "sum, mean (did you mean 'mean'?)": why `word` is none of the choices.
std::string refuse_choice(const std::string& word, const std::vector<std::string>& choices);

/// Values of MCoreQAD's own command line, `--save-path` and `--model-path`, for the commands that read its files.
struct McoreQadPaths {
  std::string save_path, model_path;
};
std::vector<Option> mcore_qad_options(McoreQadPaths& paths);
bool takes_mcore_qad_paths(const std::string& command);

}  // namespace scalewright
