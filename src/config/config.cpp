#include "config/config.h"

#include "base/error.h"
#include "config/mcore_qad_dialect.h"
#include "config/reading.h"

namespace scalewright {
namespace {

/// Rules between keys, each told where the first of its keys was given; silent about keys that are wrong by themselves.
void check_rules(Reading& reading, const SourcePlace& elsewhere) {
  for (const auto& violation : rule_violations(reading.config)) {
    const auto given = [&](const std::string& key) { return reading.places.count(key) > 0; };
    const auto wrong = [&](const std::string& key) { return reading.failed.count(key) > 0; };
    if (std::any_of(violation.keys.begin(), violation.keys.end(), wrong)) continue;
    const auto first = std::find_if(violation.keys.begin(), violation.keys.end(), given);
    reading.problems.add(first == violation.keys.end() ? elsewhere : reading.places.at(*first), violation.message);
  }
}

Config finish(Reading& reading, const std::vector<std::string>& overrides, const SourcePlace& elsewhere) {
  for (const auto& text : overrides) reading.take_override(text);
  check_rules(reading, elsewhere);
  reading.problems.raise();
  return std::move(reading.config);
}

}  // namespace

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  Reading reading;
  const YamlNode root = read_yaml(path, reading.problems);
  if (is_mcore_qad(root)) {
    translate_mcore_qad(root, path, reading);
  } else {
    reading.take_map("", root);
  }
  return finish(reading, overrides, {path});
}

Config default_config(const std::vector<std::string>& overrides) {
  Reading reading;
  return finish(reading, overrides, {});
}

void check_config(const Config& config) {
  Problems problems;
  for (const auto& violation : rule_violations(config)) problems.add({}, violation.message);
  problems.raise();
}

std::string dump_config(const Config& config) {
  const Schema schema;
  std::string text;
  for (const auto& section : schema.sections()) {
    const auto depth = std::count(section.path.begin(), section.path.end(), '.');
    const std::string indent(static_cast<std::size_t>(2 * depth), ' ');
    const std::string name = section.path.substr(section.path.rfind('.') + 1);
    std::string body;
    for (const auto& key : schema.keys()) {
      const auto dot = key.path.rfind('.');
      if (key.path.substr(0, dot) == section.path)
        body += fmt::format("{}  {}: {}\n", indent, key.path.substr(dot + 1), value_yaml(key, config));
    }
    text += body.empty() ? fmt::format("{}{}: {{}}\n", indent, name) : fmt::format("{}{}:\n{}", indent, name, body);
  }
  return text;
}

}  // namespace scalewright
