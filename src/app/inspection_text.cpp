// The document of inspect as text for people.
#include <fmt/ranges.h>

#include "app/inspection.h"

namespace scalewright {

namespace {

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string human_count(int64_t count) {
  std::string digits = std::to_string(count);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

/// Text of a value: strings bare, the rest as JSON.
std::string plain(const OrderedJson& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string with_stars(const std::string& name) {
  std::string result;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) result += c;
    else if (!result.ends_with('*')) result += '*';
  }
  return result;
}

struct TensorRow {
  std::string name, dtype, shape;
  int64_t count = 0, bytes = 0;
};

/// Tensors of one dtype and shape whose names differ in numbers only become one row, in order of appearance.
std::vector<TensorRow> tensor_rows(const OrderedJson& tensors) {
  std::vector<TensorRow> rows;
  std::map<std::array<std::string, 3>, std::size_t> row_of;
  for (const auto& tensor : tensors) {
    const auto name = tensor.at("name").get<std::string>();
    const auto dtype = tensor.at("dtype").get<std::string>();
    const std::string shape = fmt::format("[{}]", fmt::join(tensor.at("shape").get<std::vector<int64_t>>(), ", "));
    const auto [found, is_new] = row_of.try_emplace({with_stars(name), dtype, shape}, rows.size());
    if (is_new) rows.push_back({name, dtype, shape});
    TensorRow& row = rows[found->second];
    if (!is_new) row.name = with_stars(name);
    ++row.count;
    row.bytes += tensor.at("bytes").get<int64_t>();
  }
  return rows;
}

std::string tensor_table(const OrderedJson& document) {
  const std::vector<TensorRow> rows = tensor_rows(document.at("tensors"));
  std::size_t name_width = 6, shape_width = 5;
  for (const TensorRow& row : rows) {
    name_width = std::max(name_width, row.name.size());
    shape_width = std::max(shape_width, row.shape.size());
  }
  std::string text = fmt::format("\n{:<{}}  {:>6}  {:<8} {:<{}}  {:>9}\n", "tensor", name_width, "count", "dtype", "shape", shape_width, "bytes");
  for (const TensorRow& row : rows) {
    text += fmt::format("{:<{}}  {:>6}  {:<8} {:<{}}  {:>9}\n", row.name, name_width, row.count, row.dtype, row.shape, shape_width,
                        human_bytes(static_cast<double>(row.bytes)));
  }
  return text;
}

std::string totals(const OrderedJson& document) {
  std::string text = fmt::format("{} tensors, {} elements, {}\n", human_count(static_cast<int64_t>(document.at("tensors").size())),
                                 human_count(document.at("elements")), human_bytes(document.at("bytes")));
  for (const auto& [dtype, sums] : document.at("dtypes").items()) {
    text += fmt::format("  {:<8} {:>7} tensors  {:>9}\n", dtype, human_count(sums.at("tensors")), human_bytes(sums.at("bytes")));
  }
  return text;
}

/// "4-bit float, group 16" of a compressed-tensors scheme; "not quantized" for null.
std::string scheme(const OrderedJson& arguments) {
  if (!arguments.is_object()) return "not quantized";
  const auto value = [&](const char* key) { return arguments.value(key, OrderedJson()); };
  std::string text = fmt::format("{}-bit {}", plain(value("num_bits")), plain(value("type")));
  if (value("strategy").is_string()) text += fmt::format(", {}", plain(value("strategy")));
  if (value("group_size").is_number()) text += fmt::format(", groups of {}", plain(value("group_size")));
  const OrderedJson dynamic = value("dynamic");
  if (dynamic.is_string() || (dynamic.is_boolean() && dynamic.get<bool>())) text += fmt::format(", dynamic ({})", plain(dynamic));
  return text;
}

std::string quantization(const OrderedJson& quantization) {
  if (quantization.is_null()) return "not quantized\n";
  std::string text = "quantized";
  for (const char* key : {"quant_method", "quant_algo", "format", "version"}) {
    if (quantization.contains(key)) text += fmt::format("  {}: {}", key, plain(quantization.at(key)));
  }
  text += fmt::format("\n  {} modules with scales\n", human_count(quantization.at("quantized_modules")));
  for (const auto& group : quantization.at("groups")) {
    text += fmt::format("  {}: {}\n    targets      {}\n    weights      {}\n    activations  {}\n", plain(group.at("name")), plain(group.at("format")),
                        group.at("targets").dump(), scheme(group.at("weights")), scheme(group.at("input_activations")));
  }
  if (const auto ignore = quantization.value("ignore", OrderedJson()); ignore.is_array()) {
    text += fmt::format("  ignored: {} entries\n", ignore.size());
    std::vector<std::string> patterns;
    for (const auto& name : ignore) {
      const std::string pattern = with_stars(plain(name));
      if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) patterns.push_back(pattern);
    }
    for (const std::string& pattern : patterns) text += fmt::format("    {}\n", pattern);
  }
  return text;
}

std::string model(const OrderedJson& document) {
  std::string text = fmt::format("{}: a model\n", plain(document.at("path")));
  for (const auto& [key, value] : document.at("config").items()) {
    if (value.is_number() || value.is_string() || value.is_boolean()) text += fmt::format("  {:<28} {}\n", key, plain(value));
  }
  text += fmt::format("  {:<28} {}\n", "tokenizer", document.at("tokenizer").get<bool>() ? "yes" : "none");
  text += quantization(document.at("quantization"));
  for (const auto& file : document.at("files")) {
    text += fmt::format("{}  {}, {} tensors\n", plain(file.at("file")), human_bytes(file.at("bytes")), human_count(file.at("tensors")));
  }
  return text + totals(document) + tensor_table(document);
}

std::string safetensors(const OrderedJson& document) {
  std::string text = fmt::format("{}: a safetensors file of {}\n", plain(document.at("path")), human_bytes(document.at("file_bytes")));
  for (const auto& [key, value] : document.at("metadata").items()) text += fmt::format("  {}: {}\n", key, plain(value));
  return text + totals(document) + tensor_table(document);
}

/// Fields of an object, one a line; lists and objects inside only by their size.
std::string fields(const OrderedJson& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    const bool long_value = value.is_structured() && value.dump().size() > 100;
    text += fmt::format("  {:<20} {}\n", key, long_value ? fmt::format("({} entries)", value.size()) : plain(value));
  }
  return text;
}

std::string token_shards(const OrderedJson& document) {
  OrderedJson rest = document;
  rest.erase("kind");
  rest.erase("path");
  std::string text = fmt::format("{}: prepared token shards\n", plain(document.at("path"))) + fields(rest);
  for (const auto& shard : document.at("shards")) text += fmt::format("    {}\n", shard.dump());
  return text;
}

std::string checkpoint(const OrderedJson& document) {
  std::string text = fmt::format("{}: the checkpoint of step {}, hashes verified\n", plain(document.at("path")), plain(document.at("step")));
  if (document.at("state").is_object()) text += fields(document.at("state"));
  return text + totals(document) + tensor_table(document);
}

std::string steps(const OrderedJson& document) {
  if (document.at("steps").empty()) return "  no checkpoints\n";
  return fmt::format("  checkpoints at steps {}; newest good one: {}\n", document.at("steps").dump(), document.at("latest").dump());
}

std::string run(const OrderedJson& document) {
  std::string text = fmt::format("{}: a run directory\n", plain(document.at("path"))) + steps(document.at("checkpoints"));
  for (const char* name : {"journal", "metrics"}) {
    const auto& lines = document.at(name);
    if (!lines.is_null()) text += fmt::format("  {}: {} lines, the last: {}\n", name, lines.at("lines").dump(), lines.at("last").dump());
  }
  for (const auto& [name, average] : document.at("scores").items()) text += fmt::format("  scores of {}: average {}\n", name, average.dump());
  if (!document.at("summary").is_null()) text += fmt::format("  summary: {}\n", document.at("summary").dump());
  text += fmt::format("  export: {}\n", document.at("export").is_null() ? "none yet" : plain(document.at("export")));
  return text;
}

}  // namespace

std::string describe_inspection(const OrderedJson& document) {
  const auto kind = document.at("kind").get<std::string>();
  if (kind == "model") return model(document);
  if (kind == "safetensors") return safetensors(document);
  if (kind == "token_shards") return token_shards(document);
  if (kind == "checkpoint") return checkpoint(document);
  if (kind == "run") return run(document);
  return fmt::format("{}: a folder of checkpoints\n", plain(document.at("path"))) + steps(document);
}

}  // namespace scalewright
