// A command of the program: its options as data, and what it does.
#pragma once
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "comm/mesh.h"
#include "config/config.h"
#include "ops/compute.h"

namespace scalewright {

/// One option of a command. Pointers lead into the command object; their values before parsing are the defaults shown by --help.
struct Option {
  std::string name;   // "--model"; a name without dashes is positional
  std::string help;
  std::variant<bool*, int64_t*, double*, std::string*, std::optional<int64_t>*, std::optional<double>*, std::vector<std::string>*> target;
  bool required = false;
  std::vector<std::string> choices = {};   // allowed words (strings only)
};

/// Options that every command takes.
struct CommonOptions {
  std::string config;                    // -c, --config
  std::vector<std::string> overrides;    // -o key.path=value
  bool json = false;                     // one JSON document on standard output and nothing else there
  int64_t threads = 0;                   // 0: all cores
  std::string device = "cpu";
  std::string dtype = "auto";
  std::optional<int64_t> seed;
  bool dry_run = false;
  bool profile = false;
  std::optional<int64_t> tp, ep, cp, pp, dp;
  bool sp = false;
};

/// What a command gets to work with.
struct Context {
  const CommonOptions& common;
  Log& log;
  Mesh mesh;
  Compute compute;          // dtype resolved ("auto": bfloat16 where the CPU has bf16 instructions, else float32)
};

/// Prints a command's one JSON document (pretty, with a newline) on standard output.
void print_json(const OrderedJson& document);

/// Writes text on standard output at once. Throws DiskError when it cannot (a full disk, a closed pipe).
void print_text(const std::string& text);

/// Ends a dry run: says what would be done in the log, or with --json as the one document {"would": ...}.
ExitCode would(Context& context, const std::string& what);

/// config from -c and -o, with --seed and the parallel options applied; defaults when no file was given.
Config command_config(const CommonOptions& common);

/// What a command does when torchrun, srun or launch started several ranks of it.
enum class RankUse {
  kAll,     // computes on all of them
  kFirst,   // the first does it alone, the others end at once
  kOne,     // is refused
};

class Command {
 public:
  virtual ~Command() = default;
  virtual std::string name() const = 0;
  virtual std::string summary() const = 0;
  virtual std::vector<Option> options() = 0;
  /// Whether --tp and the like speak of a later use of the model (verify: its serving) and not of this program's ranks.
  virtual bool parallel_options_are_a_plan() const { return false; }
  virtual RankUse ranks() const { return RankUse::kFirst; }
  /// Throws Error; the exit code is the return value or the error's.
  virtual ExitCode run(Context& context) = 0;
};

/// All commands in the order of the help page. Each app/<name>.cpp defines its factory.
std::vector<std::unique_ptr<Command>> all_commands();

/// Parses the command line and runs one command; prints errors; returns the exit code.
int run_program(int argc, char** argv);

}  // namespace scalewright
