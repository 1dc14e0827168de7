// Raw data to token shards, once: tokenized, masked, truncated, packed, hashed.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/config.h"

namespace scalewright {

struct PrepareReport {
  int64_t lines = 0, rows = 0, documents = 0, tokens = 0, target_tokens = 0;
  int64_t bad = 0, truncated = 0, without_target = 0;
  std::vector<std::string> bad_examples;   // "file:line: why", at most 20
  std::string content_hash;
};

/// Tokenizes `files` with the model's own tokenizer into `out` (manifest.json + shards; atomic). When `out` already holds the same
/// preparation (same file hashes, tokenizer and options) it is reused. Bad lines are counted and named. Throws DataError when no
/// usable sample is left, or the model has no tokenizer.
PrepareReport prepare_data(const std::filesystem::path& model, const std::vector<std::string>& files, const DataSection& options,
                           const std::filesystem::path& out, Log& log);

/// Hash of all that the rows of such a preparation are a function of: the files' contents, the tokenizer, the options.
std::string preparation_key(const std::filesystem::path& model, const std::vector<std::string>& files, const DataSection& options);

}  // namespace scalewright
