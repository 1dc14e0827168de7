// Lines to samples by several text workers at once, in the order of the lines.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "text/worker.h"

namespace scalewright {

/// Lines of one file that follow each other, and, once tokenized, their samples.
struct LineBlock {
  std::size_t file = 0;
  std::vector<int64_t> numbers;       // of the lines, from 1
  std::vector<std::string> lines;
  EncodeOptions options;
  std::vector<EncodedSample> samples; // filled by a worker
};

/// Pulls blocks from `source` (called by this thread, nothing: the end), tokenizes them on `workers` text workers, and hands them to
/// `sink` (called by this thread) in the order they came. At most a few blocks a worker are in flight, so memory is bounded. The first
/// error of a worker, `source` or `sink` stops all workers and is thrown.
void tokenize_blocks(const std::filesystem::path& model, int64_t workers, const std::function<std::optional<LineBlock>()>& source,
                     const std::function<void(LineBlock)>& sink);

}  // namespace scalewright
