// completion: shell scripts that know every command and option, written from the option tables.
#include <fmt/ranges.h>

#include "app/command.h"
#include "app/command_line.h"

namespace scalewright {
namespace {

struct CommandTable {
  std::string name, summary;
  std::vector<Option> options;  // own ones, then those of every command
};

/// Flags of a table in one line.
std::string all_flags(const CommandTable& table) {
  std::string flags = "--help";
  for (const auto& option : table.options)
    for (const auto& flag : option_flags(option)) flags += " " + flag;
  return flags;
}

/// The words that may stand first after the command (`config check`); empty when anything may.
std::string first_words(const CommandTable& table) {
  for (const auto& option : table.options)
    if (option_flags(option).empty()) return fmt::format("{}", fmt::join(option.choices, " "));
  return "";
}

std::string single_quoted(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + out + "'";
}

std::string bash_script(const std::vector<CommandTable>& tables) {
  std::string names, cases, values;
  for (const auto& table : tables) {
    names += (names.empty() ? "" : " ") + table.name;
    cases += fmt::format("    {}) flags={}; words={} ;;\n", table.name, single_quoted(all_flags(table)),
                         single_quoted(first_words(table)));
    for (const auto& option : table.options)
      for (const auto& flag : option_flags(option))
        if (!option.choices.empty())
          values += fmt::format("    {}:{}) COMPREPLY=($(compgen -W {} -- \"$current\")); return ;;\n", table.name,
                                flag, single_quoted(fmt::format("{}", fmt::join(option.choices, " "))));
  }
  return fmt::format(
      "# bash completion of scalewright; load it with: source <(scalewright completion bash)\n"
      "_scalewright() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} "
      "flags= words=\n"
      "  if [ \"$COMP_CWORD\" = 1 ]; then COMPREPLY=($(compgen -W '{} --help --version' -- \"$current\")); return; fi\n"
      "  case $command:$previous in\n{}  esac\n"
      "  case $command in\n{}  esac\n"
      "  if [[ $current == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n"
      "  elif [ \"$COMP_CWORD\" = 2 ] && [ -n \"$words\" ]; then COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  else COMPREPLY=($(compgen -f -- \"$current\")); fi\n"
      "}}\n"
      "complete -o filenames -F _scalewright scalewright\n",
      names, values, cases);
}

std::string zsh_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_option(const Option& option, const std::string& flag) {
  std::string spec = fmt::format("{}[{}]", flag, zsh_escaped(option.help));
  if (takes_value(option))
    spec += option.choices.empty() ? ":value:_files" : fmt::format(":value:({})", fmt::join(option.choices, " "));
  const bool repeats = std::holds_alternative<std::vector<std::string>*>(option.target);
  return single_quoted((repeats ? "*" : "") + spec);
}

std::string zsh_script(const std::vector<CommandTable>& tables) {
  std::string names, cases;
  for (const auto& table : tables) {
    names += fmt::format("    {}\n", single_quoted(table.name + ":" + zsh_escaped(table.summary)));
    cases += fmt::format("    {}) _arguments", table.name);
    for (const auto& option : table.options)
      for (const auto& flag : option_flags(option)) cases += " " + zsh_option(option, flag);
    const std::string words = first_words(table);
    if (!words.empty()) cases += " " + single_quoted(fmt::format("1:action:({})", words));
    cases += " '*:file:_files' ;;\n";
  }
  return fmt::format(
      "#compdef scalewright\n"
      "# zsh completion of scalewright; write it to a file _scalewright in a folder of $fpath\n"
      "_scalewright() {{\n"
      "  local -a commands\n"
      "  commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
      "  local command=$words[2]\n"
      "  words=(\"${{words[@]:1}}\")\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n{}  esac\n"
      "}}\n"
      "_scalewright \"$@\"\n",
      names, cases);
}

std::string fish_script(const std::vector<CommandTable>& tables) {
  std::string out = "# fish completion of scalewright; write it to ~/.config/fish/completions/scalewright.fish\n";
  for (const auto& table : tables)
    out += fmt::format("complete -c scalewright -n __fish_use_subcommand -f -a {} -d {}\n", table.name,
                       single_quoted(table.summary));
  for (const auto& table : tables) {
    const std::string when = fmt::format("complete -c scalewright -n '__fish_seen_subcommand_from {}'", table.name);
    if (const auto words = first_words(table); !words.empty())
      out += fmt::format("{} -a {}\n", when, single_quoted(words));
    for (const auto& option : table.options) {
      const auto flags = option_flags(option);
      if (flags.empty()) continue;
      out += when;
      for (const auto& flag : flags) out += flag.starts_with("--") ? " -l " + flag.substr(2) : " -s " + flag.substr(1);
      if (takes_value(option))
        out += option.choices.empty() ? " -r"
                                      : " -x -a " + single_quoted(fmt::format("{}", fmt::join(option.choices, " ")));
      out += " -d " + single_quoted(option.help) + "\n";
    }
  }
  return out;
}

class CompletionCommand : public Command {
 public:
  std::string name() const override { return "completion"; }
  std::string summary() const override { return "a completion script for bash, zsh or fish"; }
  std::vector<Option> options() override { return {{"shell", "the shell", &shell_, true, {"bash", "zsh", "fish"}}}; }

  ExitCode run(Context& context) override {
    const auto commands = all_commands();
    CommonOptions common;
    McoreQadPaths paths;
    std::vector<CommandTable> tables;
    for (const auto& command : commands) {
      CommandTable table{command->name(), command->summary(), command->options()};
      if (takes_mcore_qad_paths(table.name))
        for (auto& option : mcore_qad_options(paths)) table.options.push_back(option);
      for (auto& option : common_options(common)) table.options.push_back(option);
      tables.push_back(std::move(table));
    }
    const std::string script = shell_ == "bash"  ? bash_script(tables)
                               : shell_ == "zsh" ? zsh_script(tables)
                                                 : fish_script(tables);
    if (context.common.json) {
      print_json({{"shell", shell_}, {"script", script}});
    } else {
      print_text(script);
    }
    return ExitCode::kOk;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> make_completion_command() { return std::make_unique<CompletionCommand>(); }

}  // namespace scalewright
