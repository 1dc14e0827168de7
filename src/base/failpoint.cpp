#include "base/failpoint.h"

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace scalewright {

namespace {

constexpr const char* kVariable = "SCALEWRIGHT_FAILPOINTS";

struct Trap {
  std::string name, action;
  int at = 1;
  int visits = 0;
};

Trap parse_trap(std::string_view text) {
  const auto equals = text.find('=');
  const auto at = text.find('@');
  Trap trap;
  trap.name = text.substr(0, equals);
  if (equals != std::string_view::npos) trap.action = text.substr(equals + 1, at == std::string_view::npos ? at : at - equals - 1);
  bool good = trap.action == "kill" || trap.action == "freeze" || trap.action == "stop" || trap.action == "error";
  if (at != std::string_view::npos) {
    const auto [end, code] = std::from_chars(text.data() + at + 1, text.data() + text.size(), trap.at);
    good = good && code == std::errc() && end == text.data() + text.size() && trap.at >= 1;
  }
  if (!good) {
    throw UserError(fmt::format("{}: \"{}\" is not NAME=kill, NAME=freeze, NAME=stop or NAME=error with an optional @N", kVariable, text));
  }
  return trap;
}

/// Counts visits while the variable keeps its value; a new value starts from zero (tests change it within one process).
class Traps {
 public:
  /// The action due at this visit of `name`, or empty.
  std::string visit(std::string_view name, std::string_view specification) {
    std::lock_guard lock(mutex_);
    if (specification != specification_) reset(specification);
    std::string action;
    for (Trap& trap : traps_) {
      if (trap.name == name && ++trap.visits == trap.at) action = trap.action;
    }
    return action;
  }

 private:
  void reset(std::string_view specification) {
    traps_.clear();
    specification_ = specification;
    for (std::size_t begin = 0; begin < specification.size();) {
      const std::size_t end = std::min(specification.find(';', begin), specification.size());
      if (end > begin) traps_.push_back(parse_trap(specification.substr(begin, end - begin)));
      begin = end + 1;
    }
  }

  std::mutex mutex_;
  std::string specification_;
  std::vector<Trap> traps_;
};

}  // namespace

void failpoint(std::string_view name) {
  // The one static of the program: visit counts belong to the process, like the environment that names the places.
  static Traps traps;
  const char* specification = std::getenv(kVariable);
  if (!specification) specification = "";
  const std::string action = traps.visit(name, specification);
  if (action.empty()) return;
  std::fprintf(stderr, "failpoint %.*s: %s\n", static_cast<int>(name.size()), name.data(), action.c_str());
  if (action == "kill") std::raise(SIGKILL);
  if (action == "freeze") std::raise(SIGSTOP);
  if (action == "stop") std::raise(SIGTERM);
  if (action == "error") throw DiskError(fmt::format("failpoint {}", name));
}

}  // namespace scalewright
