#include "config/reading.h"

namespace scalewright {

void Reading::take(const std::string& path, const YamlNode& node, const std::string& shown) {
  if (set_value(*schema.find(path), node, shown, config, problems)) {
    places[path] = node.place;
    failed.erase(path);
  } else {
    failed[path] = node.place;
  }
}

void Reading::take_map(const std::string& prefix, const YamlNode& node) {
  if (node.is_null()) return;  // a section whose keys are all commented out
  if (node.kind != YamlNode::Kind::kMap) {
    problems.add(node.place,
                 fmt::format("{}: {} is not a map of keys", prefix.empty() ? "the document" : prefix, node.shown()));
    return;
  }
  for (const auto& entry : node.entries)
    take_entry(prefix.empty() ? entry.key : prefix + "." + entry.key, entry.place, entry.value);
}

void Reading::take_entry(const std::string& path, const SourcePlace& place, const YamlNode& value) {
  if (schema.find(path)) {
    take(path, value, path);
  } else if (path == "output" && value.kind == YamlNode::Kind::kScalar) {
    take_output(value);
  } else if (schema.is_section(path)) {
    take_map(path, value);
  } else {
    refuse_key(path, place, value);
  }
}

/// `output: angelslim` or `output: DIR`.
void Reading::take_output(const YamlNode& node) {
  const Key& style = *schema.find("output.style");
  const auto& styles = std::get<Choices>(style.rule).words;
  const bool is_style = std::find(styles.begin(), styles.end(), node.text) != styles.end();
  take(is_style ? "output.style" : "output.path", node, "output");
}

void Reading::refuse_key(const std::string& path, const SourcePlace& place, const YamlNode& value) {
  const auto suggestion = schema.suggestion(path);
  problems.add(place, fmt::format("unknown key '{}'", path) +
                          (suggestion ? fmt::format(" (did you mean '{}'?)", *suggestion) : ""));
  // A section under a misspelt name still has its keys checked, so that they are not found wrong only afterwards.
  if (suggestion && schema.is_section(*suggestion) && value.kind == YamlNode::Kind::kMap) take_map(*suggestion, value);
}

void Reading::take_override(const std::string& text) {
  const SourcePlace place{"-o " + text};
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems.add(place, "an override is key.path=value, for example -o train.steps=100");
    return;
  }
  const std::string path = text.substr(0, equals);
  YamlNode value;
  const Key* key = schema.find(path);
  if (key && std::holds_alternative<Accessor<std::string>>(key->field)) {
    value.kind = YamlNode::Kind::kScalar;  // taken as typed: a path may hold YAML's own characters
    value.text = text.substr(equals + 1);
  } else {
    value = parse_yaml(text.substr(equals + 1), place.source, problems);
  }
  // The places inside the typed text help nobody.
  const std::function<void(YamlNode&)> relocate = [&](YamlNode& node) {
    node.place = place;
    for (auto& item : node.items) relocate(item);
    for (auto& entry : node.entries) entry.place = place, relocate(entry.value);
  };
  relocate(value);
  take_entry(path, place, value);
}

}  // namespace scalewright
