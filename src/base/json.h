// JSON: nlohmann's value type, read with guards that it lacks (duplicate keys, depth, size).
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace scalewright {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  std::size_t max_bytes = 100u << 20;
  int max_depth = 64;
};

/// Parses `text`; `where` (a path, or "path:line") begins every error. Throws DataError on malformed text, a duplicate key, a
/// depth above the limit, or invalid UTF-8.
Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

/// Reads and parses a file. Throws DataError (missing, unreadable, malformed, too large).
Json read_json(const std::filesystem::path& path, const JsonLimits& limits = {});

}  // namespace scalewright
