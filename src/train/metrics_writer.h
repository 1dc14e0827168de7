// The numbers of a run as files: metrics.jsonl (one JSON object a line) and TensorBoard events.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "train/tensorboard_writer.h"

namespace scalewright {

/// <run>/metrics.jsonl and <run>/tensorboard/. On resume, lines of later steps than `resumed_step` are dropped, so that the file reads
/// as if the run had never been interrupted; a torn last line is dropped too.
class MetricsWriter {
 public:
  MetricsWriter(const std::filesystem::path& run, std::optional<int64_t> resumed_step);
  /// {"kind": kind, "step": step, values...}; values that are not finite are written as null.
  void write(const std::string& kind, int64_t step, const std::map<std::string, double>& values);

 private:
  std::filesystem::path path_;
  TensorBoardWriter tensorboard_;
};

}  // namespace scalewright
