// A configuration while it is being read: the values so far, where each came from, and what is wrong.
#pragma once
#include <map>
#include <string>

#include "config/problem.h"
#include "config/schema.h"
#include "config/yaml_reader.h"

namespace scalewright {

struct Reading {
  Schema schema;
  Config config;
  Problems problems;
  std::map<std::string, SourcePlace> places;  // of keys that were given
  std::map<std::string, SourcePlace> failed;  // of keys whose value was refused; rules about them stay silent

  /// Takes `node` for the key of ours `path`, calling it `shown` in messages.
  void take(const std::string& path, const YamlNode& node, const std::string& shown);
  /// Takes a whole map of our keys below `prefix` ("" at the top).
  void take_map(const std::string& prefix, const YamlNode& node);
  /// Takes "key.path=value".
  void take_override(const std::string& text);

 private:
  void take_entry(const std::string& path, const SourcePlace& place, const YamlNode& value);
  void refuse_key(const std::string& path, const SourcePlace& place, const YamlNode& value);
  void take_output(const YamlNode& node);
};

/// A rule about several keys that does not hold.
struct Violation {
  std::vector<std::string> keys;
  std::string message;
};
std::vector<Violation> rule_violations(const Config& config);

}  // namespace scalewright
