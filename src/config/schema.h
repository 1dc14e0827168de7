// The schema table: one row a key. Reading, checking, writing and documenting the configuration all go over it.
#pragma once
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "config/yaml_reader.h"

namespace scalewright {

/// Where a key's value lives in a Config.
template <typename T>
using Accessor = std::function<T&(Config&)>;
/// One key for two numbers (train.betas).
struct PairAccessor {
  Accessor<double> first, second;
};
using Field = std::variant<Accessor<bool>, Accessor<int64_t>, Accessor<double>, Accessor<std::string>,
                           Accessor<std::vector<std::string>>, PairAccessor>;

/// Any value of the type.
struct Anything {};
/// Numbers from low to high; an open end does not belong to it.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;
  bool contains(double value) const;
  std::string text() const;  // "at least 1", "above 0 and below 1", ...
};
/// One of a few words; `aliases` are other spellings of them.
struct Choices {
  std::vector<std::string> words;
  std::map<std::string, std::string> aliases = {};
};
/// Words with a regular form, described in `allowed`.
struct Pattern {
  std::string expression;  // ECMAScript, for the whole text
  std::string allowed;
};
using Rule = std::variant<Anything, Range, Choices, Pattern>;

struct Key {
  std::string path;  // "train.loss.top_k"
  Field field;
  Rule rule;
  std::string doc;
};

/// The section's own line in the reference, in the order of the file.
struct Section {
  std::string path;  // "train", "train.loss"
  std::string doc;
};

class Schema {
 public:
  Schema();
  const std::vector<Key>& keys() const { return keys_; }
  const std::vector<Section>& sections() const { return sections_; }
  /// nullptr when there is none.
  const Key* find(std::string_view path) const;
  bool is_section(std::string_view path) const;
  /// The key or section that `path` was probably meant to be.
  std::optional<std::string> suggestion(const std::string& path) const;

 private:
  std::vector<Key> keys_;
  std::vector<Section> sections_;
};

/// Reads `node` into the key's place in `config`; what does not fit is added to `problems` under the name `shown` (a
/// key of ours, or of the dialect the file is written in). Returns whether the value was taken.
bool set_value(const Key& key, const YamlNode& node, const std::string& shown, Config& config, Problems& problems);

/// The value as JSON: as written by dump_config and `config show --json`.
OrderedJson value_json(const Key& key, const Config& config);
/// The value as one line of YAML.
std::string value_yaml(const Key& key, const Config& config);
/// "whole number, at least 1"; "one of a, b"; for error messages and the reference.
std::string allowed_text(const Key& key);
/// The whole configuration as nested JSON, in schema order.
OrderedJson config_json(const Config& config);

}  // namespace scalewright
