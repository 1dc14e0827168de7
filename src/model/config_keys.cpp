#include "model/config_keys.h"

#include <fstream>

#include "base/error.h"
#include "base/near.h"

namespace scalewright {

namespace {

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr std::size_t kMost = 80;
  if (text.size() > kMost) text.replace(kMost - 3, std::string::npos, "...");
  return text;
}

std::string range_text(ConfigKeys::Range range) { return fmt::format("an integer from {} to {}", range.least, range.most); }

/// An integer written as such, or as a float without a fraction (2.0).
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) < 1e15) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

ConfigKeys::ConfigKeys(std::filesystem::path file, const Json& object, std::string inside)
    : file_(std::move(file)), object_(object), inside_(std::move(inside)) {
  if (!object_.is_object()) {
    throw DataError(fmt::format("{}: {} is not a JSON object", file_.string(), inside_.empty() ? "the file" : inside_));
  }
}

std::string_view ConfigKeys::present(Names names) const {
  for (const std::string_view name : names) {
    const auto found = object_.find(std::string(name));
    if (found != object_.end() && !found->is_null()) return name;
  }
  return {};
}

const Json* ConfigKeys::find(Names names) const {
  const std::string_view chosen = present(names);
  if (chosen.empty()) return nullptr;
  const Json& value = object_.at(std::string(chosen));
  for (const std::string_view name : names) {
    const auto other = object_.find(std::string(name));
    if (other == object_.end() || other->is_null() || *other == value) continue;
    throw DataError(fmt::format("{}: {} is {}, but {} is {}; they mean the same\nhint: keep one of the two", where(name), spelled(chosen),
                                shown(value), spelled(name), shown(*other)));
  }
  return &value;
}

std::string ConfigKeys::spelled(std::string_view name) const {
  return inside_.empty() ? std::string(name) : fmt::format("{}.{}", inside_, name);
}

std::string ConfigKeys::where(std::string_view name) const {
  // Lines are only wanted for messages, so the file is looked through again instead of being parsed with positions.
  std::ifstream stream(file_);
  const std::string quoted = fmt::format("\"{}\"", name);
  bool inside = inside_.empty();
  std::string line;
  for (int64_t number = 1; std::getline(stream, line); ++number) {
    if (!inside) inside = line.find(fmt::format("\"{}\"", inside_)) != std::string::npos;
    if (inside && line.find(quoted) != std::string::npos) return fmt::format("{}:{}", file_.string(), number);
  }
  return file_.string();
}

void ConfigKeys::refuse(std::string_view name, const std::string& allowed, const std::string& hint) const {
  const auto found = object_.find(std::string(name));
  const std::string value = found == object_.end() ? "absent" : shown(*found);
  throw DataError(fmt::format("{}: {} is {}; expected {}{}{}", where(name), spelled(name), value, allowed, hint.empty() ? "" : "\nhint: ", hint));
}

void ConfigKeys::missing(Names names, const std::string& allowed) const {
  std::vector<std::string> keys;
  for (const auto& item : object_.items()) keys.push_back(item.key());
  std::string hint;
  std::string all;
  for (const std::string_view name : names) {
    if (const auto near = nearest(name, keys); near && hint.empty()) {
      hint = fmt::format("\nhint: is {} (now {}) meant?", spelled(*near), shown(object_.at(*near)));
    }
    all += fmt::format("{}{}", all.empty() ? "" : " or ", spelled(name));
  }
  throw DataError(fmt::format("{}: {} is missing; expected {}{}", file_.string(), all, allowed, hint));
}

std::optional<int64_t> ConfigKeys::maybe_integer(Names names, Range range) const {
  const Json* value = find(names);
  if (!value) return std::nullopt;
  const auto number = as_integer(*value);
  if (!number || *number < range.least || *number > range.most) refuse(present(names), range_text(range));
  return number;
}

int64_t ConfigKeys::integer(Names names, Range range) const {
  const auto number = maybe_integer(names, range);
  if (!number) missing(names, range_text(range));
  return *number;
}

std::optional<int64_t> ConfigKeys::maybe_uniform_integer(Names names, Range range) const {
  const Json* value = find(names);
  if (!value || !value->is_array()) return maybe_integer(names, range);
  const auto numbers = maybe_integers(names);
  for (const int64_t number : *numbers) {
    if (number < range.least || number > range.most) refuse(present(names), range_text(range));
    if (number != numbers->front()) refuse(present(names), "the same size for all layers", "models whose layers differ in size are not supported");
  }
  if (numbers->empty()) refuse(present(names), range_text(range));
  return numbers->front();
}

int64_t ConfigKeys::uniform_integer(Names names, Range range) const {
  const auto number = maybe_uniform_integer(names, range);
  if (!number) missing(names, range_text(range));
  return *number;
}

std::optional<std::vector<int64_t>> ConfigKeys::maybe_integers(Names names) const {
  const Json* value = find(names);
  if (!value) return std::nullopt;
  if (!value->is_array()) refuse(present(names), "a list of integers");
  std::vector<int64_t> numbers;
  for (const Json& item : *value) {
    const auto number = as_integer(item);
    if (!number) refuse(present(names), "a list of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<double> ConfigKeys::maybe_number(Names names) const {
  const Json* value = find(names);
  if (!value) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) refuse(present(names), "a finite number");
  return value->get<double>();
}

double ConfigKeys::positive(Names names, std::optional<double> fallback) const {
  const auto number = maybe_number(names);
  if (!number && !fallback) missing(names, "a number above 0");
  if (number && !(*number > 0)) refuse(present(names), "a number above 0");
  return number ? *number : *fallback;
}

bool ConfigKeys::flag(Names names, bool fallback) const {
  const Json* value = find(names);
  if (!value) return fallback;
  if (!value->is_boolean()) refuse(present(names), "true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigKeys::maybe_text(Names names) const {
  const Json* value = find(names);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(present(names), "a string");
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> ConfigKeys::maybe_texts(Names names) const {
  const Json* value = find(names);
  if (!value) return std::nullopt;
  if (!value->is_array()) refuse(present(names), "a list of strings");
  std::vector<std::string> texts;
  for (const Json& item : *value) {
    if (!item.is_string()) refuse(present(names), "a list of strings");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

}  // namespace scalewright
