#include "train/metrics_writer.h"

#include "base/json.h"
#include "store/files.h"

namespace scalewright {

namespace {

/// The lines of `text` that are whole JSON objects of a step up to `last`.
std::string lines_up_to(const std::string& text, int64_t last) {
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string line = text.substr(begin, end - begin);
    const Json parsed = Json::parse(line, nullptr, false);
    if (parsed.is_object() && parsed.value("step", last + 1) <= last) kept += line + '\n';
    begin = end + 1;
  }
  return kept;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& run, std::optional<int64_t> resumed_step)
    : path_(run / "metrics.jsonl"), tensorboard_(run / "tensorboard", resumed_step) {
  const std::string before = std::filesystem::exists(path_) ? read_file(path_) : std::string();
  write_file_atomic(path_, resumed_step ? lines_up_to(before, *resumed_step) : std::string());
}

void MetricsWriter::write(const std::string& kind, int64_t step, const std::map<std::string, double>& values) {
  OrderedJson line = {{"kind", kind}, {"step", step}};
  std::map<std::string, double> tagged;
  for (const auto& [name, value] : values) {
    line[name] = std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
    tagged[kind + "/" + name] = value;
  }
  append_line(path_, line.dump());
  tensorboard_.scalars(step, tagged);
}

}  // namespace scalewright
