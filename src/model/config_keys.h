// Typed access to the keys of a config.json: aliases, ranges, and errors that name file, line, key, value and what is allowed.
#pragma once
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace scalewright {

/// One JSON object of a file. Every accessor takes the names a key goes by; `null` counts as absent, and two names with different
/// values are an error. All throw DataError.
class ConfigKeys {
 public:
  using Names = std::initializer_list<std::string_view>;
  struct Range {
    int64_t least, most;
  };

  /// `object` must outlive this. `inside`: the key of the enclosing object that `object` is ("rope_parameters"), for messages.
  ConfigKeys(std::filesystem::path file, const Json& object, std::string inside = "");

  bool has(Names names) const { return find(names) != nullptr; }
  /// The value under whichever name is there, or nullptr.
  const Json* find(Names names) const;

  int64_t integer(Names names, Range range) const;
  std::optional<int64_t> maybe_integer(Names names, Range range) const;
  /// A list of integers that all agree counts as one (per-layer sizes of some hub models).
  int64_t uniform_integer(Names names, Range range) const;
  std::optional<int64_t> maybe_uniform_integer(Names names, Range range) const;
  std::optional<std::vector<int64_t>> maybe_integers(Names names) const;
  std::optional<double> maybe_number(Names names) const;
  /// A number above zero.
  double positive(Names names, std::optional<double> fallback = std::nullopt) const;
  bool flag(Names names, bool fallback) const;
  std::optional<std::string> maybe_text(Names names) const;
  std::optional<std::vector<std::string>> maybe_texts(Names names) const;

  /// Throws: "FILE:LINE: KEY is VALUE; expected ALLOWED", and the hint unless empty.
  [[noreturn]] void refuse(std::string_view name, const std::string& allowed, const std::string& hint = "") const;
  /// Throws: "FILE: KEY is missing; expected ALLOWED", with the nearest key of the object as a hint.
  [[noreturn]] void missing(Names names, const std::string& allowed) const;

 private:
  std::string_view present(Names names) const;             // the first name with a value, or empty
  std::string where(std::string_view name) const;          // "FILE:LINE"
  std::string spelled(std::string_view name) const;        // "rope_parameters.factor"

  std::filesystem::path file_;
  const Json& object_;
  std::string inside_;
};

}  // namespace scalewright
