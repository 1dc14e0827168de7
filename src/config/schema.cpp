#include "config/schema.h"

#include <regex>

#include <fmt/ranges.h>

#include "base/near.h"
#include "config/scalar.h"

namespace scalewright {
namespace {

std::string_view parent_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}
std::string leaf_of(std::string_view path) { return std::string(path.substr(path.rfind('.') + 1)); }

/// Whether a number lies in the key's range.
bool in_range(const Rule& rule, double value) {
  const auto* range = std::get_if<Range>(&rule);
  return !range || range->contains(value);
}

/// A word after the rule: an alias becomes its word; nothing when it is not allowed.
std::optional<std::string> allowed_word(const Rule& rule, const std::string& word) {
  if (const auto* choices = std::get_if<Choices>(&rule)) {
    if (const auto alias = choices->aliases.find(word); alias != choices->aliases.end()) return alias->second;
    if (std::find(choices->words.begin(), choices->words.end(), word) == choices->words.end()) return std::nullopt;
  }
  if (const auto* pattern = std::get_if<Pattern>(&rule))
    if (!std::regex_match(word, std::regex(pattern->expression))) return std::nullopt;
  return word;
}

/// One setting of one key; each member reads one type of value.
struct Setter {
  const Key& key;
  const YamlNode& node;
  const std::string& shown;
  Config& config;
  Problems& problems;

  bool refuse(const std::string& why) const {
    problems.add(node.place, fmt::format("{}: {} (allowed: {})", shown, why, allowed_text(key)));
    return false;
  }

  bool operator()(const Accessor<bool>& access) const {
    std::string why;
    const auto value = scalar_bool(node, why);
    if (!value) return refuse(why);
    access(config) = *value;
    return true;
  }

  bool operator()(const Accessor<int64_t>& access) const {
    std::string why;
    const auto value = scalar_int(node, why);
    if (!value) return refuse(why);
    if (!in_range(key.rule, static_cast<double>(*value))) return refuse(fmt::format("{} is out of range", *value));
    access(config) = *value;
    return true;
  }

  std::optional<double> number(const YamlNode& from) const {
    std::string why;
    const auto value = scalar_double(from, why);
    if (!value) return refuse(why), std::nullopt;
    if (!in_range(key.rule, *value)) return refuse(fmt::format("{} is out of range", from.text)), std::nullopt;
    return value;
  }

  bool operator()(const Accessor<double>& access) const {
    const auto value = number(node);
    if (value) access(config) = *value;
    return value.has_value();
  }

  bool operator()(const PairAccessor& access) const {
    if (node.kind != YamlNode::Kind::kSequence || node.items.size() != 2)
      return refuse(node.shown() + " is not a list of two numbers");
    const auto first = number(node.items[0]);
    const auto second = number(node.items[1]);
    if (!first || !second) return false;
    access.first(config) = *first;
    access.second(config) = *second;
    return true;
  }

  bool operator()(const Accessor<std::string>& access) const {
    if (node.is_null()) {
      access(config) = "";
      if (!std::holds_alternative<Anything>(key.rule)) return refuse("no value");
      return true;
    }
    std::string why;
    const auto value = scalar_string(node, why);
    if (!value) return refuse(why);
    const auto word = allowed_word(key.rule, *value);
    if (!word) return refuse_word(*value);
    access(config) = *word;
    return true;
  }

  bool refuse_word(const std::string& word) const {
    std::string why = fmt::format("'{}' is not allowed", word);
    if (const auto* choices = std::get_if<Choices>(&key.rule))
      if (const auto near = nearest(word, choices->words)) why += fmt::format(", did you mean '{}'?", *near);
    return refuse(why);
  }

  bool operator()(const Accessor<std::vector<std::string>>& access) const {
    std::vector<std::string> values;
    std::string why;
    if (node.kind == YamlNode::Kind::kScalar) {
      values.push_back(node.text);
    } else if (node.kind == YamlNode::Kind::kMap) {
      return refuse(node.shown() + " is not a list");
    }
    for (const auto& item : node.items) {
      const auto value = scalar_string(item, why);
      if (!value) return refuse(why);
      values.push_back(*value);
    }
    access(config) = values;
    return true;
  }
};

std::string type_text(const Field& field) {
  static const std::array<const char*, 6> kNames = {"true or false", "whole number",          "number",
                                                    "text",          "list of texts, or one", "list of two numbers"};
  return kNames[field.index()];
}

}  // namespace

bool Range::contains(double value) const {
  return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
}

std::string Range::text() const {
  std::string text;
  if (std::isfinite(low)) text = fmt::format("{} {}", low_open ? "above" : "at least", low);
  if (std::isfinite(high))
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ", high_open ? "below" : "at most", high);
  return text;
}

const Key* Schema::find(std::string_view path) const {
  for (const auto& key : keys_)
    if (key.path == path) return &key;
  return nullptr;
}

bool Schema::is_section(std::string_view path) const {
  return std::any_of(sections_.begin(), sections_.end(), [&](const Section& section) { return section.path == path; });
}

std::optional<std::string> Schema::suggestion(const std::string& path) const {
  std::vector<std::string> all, siblings;
  for (const auto& section : sections_) all.push_back(section.path);
  for (const auto& key : keys_) all.push_back(key.path);
  for (const auto& name : all)
    if (parent_of(name) == parent_of(path)) siblings.push_back(leaf_of(name));
  // First a slip in the last word, then the right word in another section, then a slip anywhere.
  if (const auto near = nearest(leaf_of(path), siblings))
    return parent_of(path).empty() ? *near : std::string(parent_of(path)) + "." + *near;
  std::optional<std::string> same_leaf;
  for (const auto& key : keys_)
    if (leaf_of(key.path) == leaf_of(path) &&
        (!same_leaf || edit_distance(key.path, path) < edit_distance(*same_leaf, path)))
      same_leaf = key.path;
  return same_leaf ? same_leaf : nearest(path, all);
}

bool set_value(const Key& key, const YamlNode& node, const std::string& shown, Config& config, Problems& problems) {
  return std::visit(Setter{key, node, shown, config, problems}, key.field);
}

std::string allowed_text(const Key& key) {
  if (const auto* choices = std::get_if<Choices>(&key.rule)) return fmt::format("{}", fmt::join(choices->words, ", "));
  if (const auto* pattern = std::get_if<Pattern>(&key.rule)) return pattern->allowed;
  const auto* range = std::get_if<Range>(&key.rule);
  return type_text(key.field) + (range ? ", " + range->text() : "");
}

OrderedJson value_json(const Key& key, const Config& config) {
  Config copy = config;  // accessors give references into a mutable Config
  return std::visit(
      [&](const auto& access) -> OrderedJson {
        if constexpr (std::is_same_v<std::decay_t<decltype(access)>, PairAccessor>) {
          return OrderedJson::array({access.first(copy), access.second(copy)});
        } else {
          return access(copy);
        }
      },
      key.field);
}

std::string value_yaml(const Key& key, const Config& config) {
  const auto text = [](const OrderedJson& value) {
    if (value.is_string()) return string_text(value.get<std::string>());
    return value.is_number_float() ? number_text(value.get<double>()) : value.dump();
  };
  const OrderedJson value = value_json(key, config);
  if (!value.is_array()) return text(value);
  std::vector<std::string> items;
  for (const auto& item : value) items.push_back(text(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

OrderedJson config_json(const Config& config) {
  const Schema schema;
  OrderedJson root = OrderedJson::object();
  const auto pointer = [](std::string path) {
    std::replace(path.begin(), path.end(), '.', '/');
    return OrderedJson::json_pointer("/" + path);
  };
  for (const auto& section : schema.sections()) root[pointer(section.path)] = OrderedJson::object();
  for (const auto& key : schema.keys()) root[pointer(key.path)] = value_json(key, config);
  return root;
}

}  // namespace scalewright
