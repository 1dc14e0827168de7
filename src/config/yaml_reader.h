// YAML as a tree of our own that knows where each value stands: yaml-cpp's events, with the guards that it lacks (size,
// depth, duplicate keys, aliases that multiply). Scalars stay text; scalar.h says what a text means.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/problem.h"

namespace scalewright {

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  SourcePlace place;                  // of the value; of the key for a null value
  std::string text;             // of a scalar
  bool quoted = false;          // "..." or '...': always a string
  std::vector<YamlNode> items;  // of a sequence
  std::vector<Entry> entries;   // of a map, in the order of the file, keys unique

  bool is_null() const { return kind == Kind::kNull; }
  /// The value of `key`, or nullptr.
  const YamlNode* find(std::string_view key) const;
  /// How an error message shows the value: the text, or "a list of 3", "a map", "nothing".
  std::string shown() const;
};

struct YamlNode::Entry {
  std::string key;
  SourcePlace place;
  YamlNode value;
};

struct YamlLimits {
  std::size_t max_bytes = 1u << 20;
  int max_depth = 32;
  std::size_t max_nodes = 20000;  // after aliases are expanded
};

/// Parses one document. Duplicate keys are added to `problems` (the first value stays); what is no YAML, or beyond the
/// limits, throws UserError with file:line:column. `name` is what messages call the text. An empty text is a null node.
YamlNode parse_yaml(std::string_view text, const std::string& name, Problems& problems, const YamlLimits& limits = {});

/// Reads and parses a file. Throws UserError naming it when it is missing, a folder, or unreadable.
YamlNode read_yaml(const std::string& path, Problems& problems, const YamlLimits& limits = {});

}  // namespace scalewright
