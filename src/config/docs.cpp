// What is generated from the schema: the JSON schema for editors, and the reference page.
#include "config/mcore_qad_dialect.h"
#include "config/schema.h"

namespace scalewright {
namespace {

OrderedJson range_schema(OrderedJson type, const Rule& rule) {
  if (const auto* range = std::get_if<Range>(&rule)) {
    if (std::isfinite(range->low)) type[range->low_open ? "exclusiveMinimum" : "minimum"] = range->low;
    if (std::isfinite(range->high)) type[range->high_open ? "exclusiveMaximum" : "maximum"] = range->high;
  }
  return type;
}

OrderedJson text_schema(const Rule& rule) {
  if (const auto* choices = std::get_if<Choices>(&rule)) {
    auto words = choices->words;
    for (const auto& [alias, word] : choices->aliases) words.push_back(alias);
    return {{"enum", words}};
  }
  if (const auto* pattern = std::get_if<Pattern>(&rule))
    return {{"type", {"string", "integer"}}, {"pattern", "^(" + pattern->expression + ")$"}};
  return {{"type", {"string", "null"}}};
}

struct TypeSchema {
  const Rule& rule;
  OrderedJson operator()(const Accessor<bool>&) const { return {{"type", "boolean"}}; }
  OrderedJson operator()(const Accessor<int64_t>&) const { return range_schema({{"type", "integer"}}, rule); }
  OrderedJson operator()(const Accessor<double>&) const { return range_schema({{"type", "number"}}, rule); }
  OrderedJson operator()(const Accessor<std::string>&) const { return text_schema(rule); }
  OrderedJson operator()(const Accessor<std::vector<std::string>>&) const {
    return {{"type", {"array", "string", "null"}}, {"items", {{"type", "string"}}}};
  }
  OrderedJson operator()(const PairAccessor&) const {
    return {{"type", "array"}, {"items", range_schema({{"type", "number"}}, rule)}, {"minItems", 2}, {"maxItems", 2}};
  }
};

OrderedJson key_schema(const Key& key) { return std::visit(TypeSchema{key.rule}, key.field); }

OrderedJson map_schema(const std::string& doc) {
  return {{"description", doc},
          {"type", {"object", "null"}},
          {"properties", OrderedJson::object()},
          {"additionalProperties", false}};
}

/// The object schema that `path` ("a.b") leads to below `root`, made on the way.
OrderedJson& map_at(OrderedJson& root, const std::string& path) {
  OrderedJson* at = &root;
  for (std::size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    OrderedJson& properties = (*at)["properties"];
    const std::string name = path.substr(begin, end - begin);
    if (!properties.contains(name)) properties[name] = map_schema("");
    at = &properties[name];
    begin = end + 1;
  }
  return *at;
}

void put(OrderedJson& root, const std::string& path, OrderedJson value) {
  const auto dot = path.rfind('.');
  map_at(root, dot == std::string::npos ? "" : path.substr(0, dot))["properties"][path.substr(dot + 1)] =
      std::move(value);
}

OrderedJson own_schema(const Schema& schema) {
  const Config defaults;
  OrderedJson root = map_schema("A run of scalewright.");
  for (const auto& section : schema.sections()) map_at(root, section.path)["description"] = section.doc;
  for (const auto& key : schema.keys()) {
    OrderedJson entry = {{"description", key.doc}};
    entry.update(key_schema(key));
    entry["default"] = value_json(key, defaults);
    put(root, key.path, std::move(entry));
  }
  root["properties"]["output"]["type"] = {"object", "string", "null"};
  return root;
}

OrderedJson dialect_schema(const Schema& schema) {
  OrderedJson root = map_schema("An AngelSlim MCoreQAD run, translated.");
  for (const auto& key : mcore_qad_keys()) {
    OrderedJson entry = {{"description", key.ours.empty()  ? key.doc
                                         : key.doc.empty() ? key.ours
                                                           : key.ours + "; " + key.doc}};
    if (!key.ours.empty()) entry.update(key_schema(*schema.find(key.ours)));
    put(root, key.path, std::move(entry));
  }
  root["required"] = {"compression"};
  return root;
}

std::string escaped(std::string text) {
  for (std::size_t i = 0; (i = text.find('|', i)) != std::string::npos; i += 2) text.insert(i, "\\");
  return text;
}

}  // namespace

std::string config_json_schema() {
  const Schema schema;
  OrderedJson root = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "scalewright configuration"},
      {"if", {{"type", "object"}, {"required", {"compression"}}}},
      {"then", {{"$ref", "#/$defs/mcore_qad"}}},
      {"else", {{"$ref", "#/$defs/scalewright"}}},
  };
  root["$defs"] = {{"scalewright", own_schema(schema)}, {"mcore_qad", dialect_schema(schema)}};
  return root.dump(2) + "\n";
}

std::string config_reference_markdown() {
  const Schema schema;
  const Config defaults;
  std::string text =
      "# Configuration reference\n\n"
      "Written by `scalewright config reference`; do not edit. A configuration is one YAML file; every key is optional "
      "and has the default shown.\n"
      "`-o key.path=value` on the command line comes last. `scalewright config check FILE` tells all mistakes at once, "
      "`config show FILE` the resolved\n"
      "values, and `config schema` prints a JSON schema for editors. Relative paths are relative to the working "
      "directory.\n";
  for (const auto& section : schema.sections()) {
    text += fmt::format("\n## {}\n\n{}\n", section.path, section.doc);
    std::string rows;
    for (const auto& key : schema.keys())
      if (key.path.substr(0, key.path.rfind('.')) == section.path)
        rows += fmt::format("| `{}` | `{}` | {} | {} |\n", key.path.substr(key.path.rfind('.') + 1),
                            value_yaml(key, defaults), escaped(allowed_text(key)), escaped(key.doc));
    if (!rows.empty()) text += "\n| key | default | allowed | meaning |\n|---|---|---|---|\n" + rows;
  }
  text +=
      "\n## AngelSlim MCoreQAD files\n\n"
      "A file with `compression` at the top is read as AngelSlim's and translated. It sets `quantize.numerics: "
      "mcore_qad`, `output.style: angelslim` and\n"
      "`train.loss.tail: false`; the loss counts all tokens but padding, and assistant spans for hy_v3, as MCoreQAD "
      "does.\n\n"
      "| AngelSlim's key | ours | remark |\n|---|---|---|\n";
  for (const auto& key : mcore_qad_keys())
    text += fmt::format("| `{}` | {} | {} |\n", key.path, key.ours.empty() ? "no effect" : "`" + key.ours + "`",
                        escaped(key.doc));
  return text;
}

}  // namespace scalewright
