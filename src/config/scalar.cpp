#include "config/scalar.h"

#include <charconv>

namespace scalewright {
namespace {

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
}

/// Texts that are numbers to YAML 1.1 but not what they look like.
bool ambiguous_number(const std::string& text, std::string& why) {
  std::string_view digits = text;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
  if (digits.size() > 1 && digits[0] == '0' && all_digits(digits)) {
    const auto first = digits.find_first_not_of('0');
    why = fmt::format("'{}' is octal to some readers and decimal to others; write {}", text,
                      first == std::string_view::npos ? "0" : std::string(digits.substr(first)));
    return true;
  }
  if (digits.size() > 1 && digits[0] == '0' && std::strchr("xXoObB", digits[1])) {
    why = fmt::format("'{}' is not decimal; write the number in decimal", text);
    return true;
  }
  if (digits.find_first_of(":_") != std::string_view::npos && std::isdigit(static_cast<unsigned char>(digits[0]))) {
    why = fmt::format("'{}' is a number to some readers and a string to others; write decimal digits only", text);
    return true;
  }
  return false;
}

std::optional<double> parse_double(const std::string& text) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_int(const std::string& text) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

bool is_number_node(const YamlNode& node, const char* wanted, std::string& why) {
  if (node.kind != YamlNode::Kind::kScalar) {
    why = fmt::format("{} is not {}", node.shown(), wanted);
    return false;
  }
  if (node.quoted) {
    why = fmt::format("{} is a string, not {}; leave the quotes away", node.shown(), wanted);
    return false;
  }
  return !ambiguous_number(node.text, why);
}

}  // namespace

std::optional<bool> scalar_bool(const YamlNode& node, std::string& why) {
  if (node.kind == YamlNode::Kind::kScalar && !node.quoted) {
    if (node.text == "true") return true;
    if (node.text == "false") return false;
  }
  why = fmt::format("{} is not true or false", node.shown());
  return std::nullopt;
}

std::optional<int64_t> scalar_int(const YamlNode& node, std::string& why) {
  if (!is_number_node(node, "a whole number", why)) return std::nullopt;
  if (const auto value = parse_int(node.text)) return value;
  const auto real = parse_double(node.text);
  constexpr double kExact = 9007199254740992.0;  // 2^53: whole numbers beyond it are not exact as doubles
  if (real && *real == std::floor(*real) && std::abs(*real) <= kExact) return static_cast<int64_t>(*real);
  why = fmt::format("{} is not a whole number", node.shown());
  return std::nullopt;
}

std::optional<double> scalar_double(const YamlNode& node, std::string& why) {
  if (!is_number_node(node, "a number", why)) return std::nullopt;
  if (const auto value = parse_double(node.text)) return value;
  why = fmt::format("{} is not a finite number", node.shown());
  return std::nullopt;
}

std::optional<std::string> scalar_string(const YamlNode& node, std::string& why) {
  if (node.kind == YamlNode::Kind::kScalar) return node.text;
  why = fmt::format("{} is not a string", node.shown());
  return std::nullopt;
}

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string string_text(const std::string& value) {
  static const std::array<std::string_view, 8> kWords = {"true", "false", "null", "yes", "no", "on", "off", "nan"};
  std::string lower = value;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool word = std::find(kWords.begin(), kWords.end(), lower) != kWords.end();
  const bool plain = !value.empty() && (std::isalpha(static_cast<unsigned char>(value[0])) || value[0] == '/') &&
                     value.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") ==
                         std::string::npos;
  if (plain && !word) return value;
  // A JSON string is a YAML string: the same escapes.
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace scalewright
