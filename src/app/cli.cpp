// The command line: parsing (CLI11 is seen nowhere else), the context of a command, and how failures leave the program.
#include <csignal>
#include <cstdio>
#include <iostream>
#include <regex>

#include <torch/headeronly/version.h>
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/command_line.h"
#include "app/runtime.h"
#include "base/near.h"
#include "ops/tensor_memory.h"

namespace scalewright {
namespace {

using Commands = std::vector<std::unique_ptr<Command>>;

/// Whole numbers as people write them; CLI11 would take 010 for 8 and 0x10 for 16.
std::string check_int(const std::string& text) {
  static const std::regex kDecimal("-?(0|[1-9][0-9]*)");
  return std::regex_match(text, kDecimal) ? "" : fmt::format("'{}' is not a whole number in decimal", text);
}

/// Adds one row of an option table.
struct OptionAdder {
  CLI::App& app;
  const Option& option;

  CLI::Option* operator()(bool* target) const { return app.add_flag(option.name, *target, option.help); }
  CLI::Option* operator()(std::string* target) const {
    return app.add_option(option.name, *target, option.help)->capture_default_str();
  }
  CLI::Option* operator()(double* target) const {
    return app.add_option(option.name, *target, option.help)->capture_default_str();
  }
  CLI::Option* operator()(int64_t* target) const {
    return app.add_option(option.name, *target, option.help)->check(check_int)->capture_default_str();
  }
  CLI::Option* operator()(std::optional<int64_t>* target) const {
    return app.add_option(option.name, *target, option.help)->check(check_int);
  }
  CLI::Option* operator()(std::optional<double>* target) const {
    return app.add_option(option.name, *target, option.help);
  }
  CLI::Option* operator()(std::vector<std::string>* target) const {
    auto* added = app.add_option(option.name, *target, option.help);
    // A flag takes one value each time it is given, so that it never swallows what follows.
    return option.name.starts_with('-') ? added->allow_extra_args(false) : added;
  }
};

void add_options(CLI::App& app, const std::vector<Option>& options, const std::string& group) {
  for (const auto& option : options) {
    CLI::Option* added = std::visit(OptionAdder{app, option}, option.target);
    added->required(option.required)->group(group);
    if (option.choices.empty()) continue;
    added->check([choices = option.choices](const std::string& word) {
      return std::find(choices.begin(), choices.end(), word) != choices.end() ? std::string()
                                                                              : refuse_choice(word, choices);
    });
    added->description(option.help + fmt::format(" ({})", CLI::detail::join(option.choices, ", ")));
  }
}

/// The parser of the whole program, with the command that a parse selected.
class CommandLine {
 public:
  CommandLine(Commands& commands, const std::string& version) {
    app_.name("scalewright");
    app_.set_version_flag("--version", version);
    app_.require_subcommand(1);
    for (auto& command : commands) {
      CLI::App* sub = app_.add_subcommand(command->name(), command->summary());
      auto own = command->options();
      if (takes_mcore_qad_paths(command->name()))
        for (auto& option : mcore_qad_options(paths_)) own.push_back(option);
      add_options(*sub, own, "Options");
      const std::vector<Option> shared = common_options(common_);
      add_options(*sub, shared, "Options of every command");
      auto& flags = flags_[command->name()];
      flags = {"--help", "-h"};
      for (const auto* table : {&std::as_const(own), &shared})
        for (const auto& option : *table)
          for (const auto& flag : option_flags(option)) flags.push_back(flag);
    }
  }

  /// The chosen command; nothing when --help or --version has been answered. Throws UserError.
  Command* parse(int argc, char** argv, Commands& commands) {
    find_typos({argv + 1, argv + argc}, commands);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& done) {
      app_.exit(done);
      return nullptr;
    } catch (const CLI::ParseError& error) {
      const auto chosen = app_.get_subcommands();
      throw UserError(fmt::format("{}\nhint: see `scalewright {}--help`", error.what(),
                                  chosen.empty() ? "" : chosen[0]->get_name() + " "));
    }
    if (!paths_.save_path.empty()) common_.overrides.push_back("output.path=" + paths_.save_path);
    if (!paths_.model_path.empty()) common_.overrides.push_back("model.path=" + paths_.model_path);
    const std::string name = app_.get_subcommands().at(0)->get_name();
    return std::find_if(commands.begin(), commands.end(), [&](const auto& command) { return command->name() == name; })
        ->get();
  }

  const CommonOptions& common() const { return common_; }

 private:
  /// Misspelt commands and options, before CLI11 complains about something that follows from them.
  void find_typos(const std::vector<std::string>& words, const Commands& commands) const {
    if (words.empty()) throw UserError("no command given\nhint: see `scalewright --help`");
    if (words[0].starts_with('-')) return;
    std::vector<std::string> names;
    for (const auto& command : commands) names.push_back(command->name());
    const auto flags = flags_.find(words[0]);
    if (flags == flags_.end()) {
      const auto near = nearest(words[0], names);
      throw UserError(fmt::format("unknown command '{}'{}\nhint: see `scalewright --help`", words[0],
                                  near ? fmt::format(" (did you mean '{}'?)", *near) : ""));
    }
    for (const auto& word : words) {
      if (word == "--") return;
      if (!word.starts_with("--")) continue;
      const std::string flag = word.substr(0, word.find('='));
      if (std::find(flags->second.begin(), flags->second.end(), flag) != flags->second.end()) continue;
      const auto near = nearest(flag, flags->second);
      throw UserError(fmt::format("unknown option '{}' of '{}'{}\nhint: see `scalewright {} --help`", flag, words[0],
                                  near ? fmt::format(" (did you mean '{}'?)", *near) : "", words[0]));
    }
  }

  CLI::App app_{
      "Low-bit language models that keep their accuracy: quantize, recover by distillation, prove it, export."};
  CommonOptions common_;
  McoreQadPaths paths_;
  std::map<std::string, std::vector<std::string>> flags_;
};

/// Tells a failure on standard error, and with --json also as the one document on standard output.
int report(const std::string& message, ExitCode code, bool json) {
  const char* rank = std::getenv("RANK");
  std::fprintf(stderr, "%serror: %s\n", rank ? fmt::format("[rank {}] ", rank).c_str() : "", message.c_str());
  try {
    if (json) print_json({{"error", message}, {"exit_code", static_cast<int>(code)}});
  } catch (const DiskError&) {
    // Standard output is gone: standard error has the message, and the exit code stays the failure's.
  }
  return static_cast<int>(code);
}

/// Whether the file system refused something that a program does to its outputs.
bool is_output_failure(std::string_view what) {
  for (const std::string_view deed : {"create", "rename", "remove", "copy", "resize"})
    if (what.find(deed) != std::string_view::npos) return true;
  return false;
}

int run_parsed(Command& command, const CommonOptions& common) {
  const World world = world_from_environment();
  Log log(world.rank);
  CommonOptions own = common;
  const bool alone = command.ranks() != RankUse::kAll;
  if (world.launched() && command.ranks() == RankUse::kOne)
    throw UserError(fmt::format("{} runs in one process, but {} ranks were started\nhint: of the whole job, train runs on several ranks; start the rest once", command.name(),
                                world.size));
  if (world.launched() && alone) {
    if (world.rank > 0) return 0;
    log.info("{} runs on the first of {} ranks alone", command.name(), world.size);
  }
  if (command.parallel_options_are_a_plan() || (world.launched() && alone)) {
    own.tp = own.ep = own.cp = own.pp = own.dp = 1;
    own.sp = false;
    own.overrides.push_back("parallel.sp=false");
  }
  Runtime runtime = start_runtime(own, log, alone ? World{} : world);
  Context context{common, log, std::move(runtime.mesh), runtime.compute};
  return static_cast<int>(command.run(context));
}

}  // namespace

void print_json(const OrderedJson& document) {
  print_text(document.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

ExitCode would(Context& context, const std::string& what) {
  if (context.common.json) print_json({{"dry_run", true}, {"would", what}});
  else context.log.info("would {}", what);
  return ExitCode::kOk;
}

void print_text(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw DiskError(fmt::format("standard output cannot be written ({})", std::strerror(errno)));
}

int run_program(int argc, char** argv) {
  // A closed pipe is an error of a write, not the end of the program in the middle of a checkpoint.
  std::signal(SIGPIPE, SIG_IGN);
  count_tensor_memory();
  bool json = std::any_of(argv + 1, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; });
  try {
    auto commands = all_commands();
    CommandLine line(commands, fmt::format("scalewright {} (libtorch {})", SCALEWRIGHT_VERSION, TORCH_VERSION));
    Command* command = line.parse(argc, argv, commands);
    if (!command) return 0;
    json = line.common().json;
    return run_parsed(*command, line.common());
  } catch (const Error& error) {
    return report(error.what(), error.code(), json);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(fmt::format("{}\nhint: check the path: is it readable (or, for an output, writable), short enough, and free of links that lead in circles?", error.what()),
                  is_output_failure(error.what()) ? ExitCode::kDisk : ExitCode::kData, json);
  } catch (const c10::Error& error) {
    return report(BugError(error.what_without_backtrace()).what(), ExitCode::kBug, json);
  } catch (const std::bad_alloc&) {
    return report(BugError("out of memory").what(), ExitCode::kBug, json);
  } catch (const std::exception& error) {
    return report(BugError(error.what()).what(), ExitCode::kBug, json);
  }
}

}  // namespace scalewright
