#include "store/manifest.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "store/files.h"

namespace scalewright {

namespace {

constexpr const char* kFormat = "scalewright-checkpoint";
constexpr int kVersion = 1;
constexpr std::string_view kBeforeHash = "{\"hash\": \"";
constexpr std::string_view kAfterHash = "\",\n\"content\": ";
constexpr std::size_t kHashDigits = 32;
constexpr std::size_t kLargestManifest = std::size_t{1} << 30;
constexpr int kDeepest = 96;

/// nlohmann writes NaN and infinity as null, which would come back as something else.
void check_finite(const Json& value, const std::string& where) {
  if (value.is_number_float()) SW_CHECK(std::isfinite(value.get<double>()), "the checkpoint state's {} is not finite", where);
  if (!value.is_structured()) return;
  for (const auto& [key, inner] : value.items()) check_finite(inner, where + "/" + key);
}

Json to_json(const Manifest& manifest) {
  Json tensors = Json::object(), shards = Json::object();
  for (const auto& [name, record] : manifest.tensors) {
    tensors[name] = {{"dtype", record.dtype}, {"shape", record.shape}, {"shard", record.shard}, {"hash", record.hash}};
  }
  for (const auto& [name, record] : manifest.shards) shards[name] = {{"bytes", record.bytes}, {"header_hash", record.header_hash}};
  return {{"format", kFormat}, {"version", kVersion}, {"step", manifest.step}, {"state", manifest.state}, {"tensors", tensors}, {"shards", shards}};
}

Manifest from_json(const Json& content, const std::string& where) {
  if (content.at("format") != kFormat) throw DataError(fmt::format("{}: not a checkpoint's manifest", where));
  if (content.at("version") != kVersion) {
    throw DataError(fmt::format("{}: version {} of the checkpoint format; this program knows {}", where, content.at("version").dump(), kVersion));
  }
  Manifest manifest;
  manifest.step = content.at("step");
  manifest.state = content.at("state");
  for (const auto& [name, record] : content.at("tensors").items()) {
    manifest.tensors[name] = {record.at("dtype"), record.at("shape"), record.at("shard"), record.at("hash")};
  }
  for (const auto& [name, record] : content.at("shards").items()) manifest.shards[name] = {record.at("bytes"), record.at("header_hash")};
  return manifest;
}

}  // namespace

void write_manifest(const fs::path& path, const Manifest& manifest) {
  check_finite(manifest.state, "state");
  const std::string tail = fmt::format("{}{}}}\n", kAfterHash, to_json(manifest).dump(1));
  write_file_atomic(path, fmt::format("{}{}{}", kBeforeHash, hash_hex(tail), tail));
}

Manifest read_manifest(const fs::path& path) {
  const std::string text = read_file(path, kLargestManifest);
  const std::string where = path.string();
  if (!std::string_view(text).starts_with(kBeforeHash) || text.size() < kBeforeHash.size() + kHashDigits + kAfterHash.size()) {
    throw DataError(fmt::format("{}: not a checkpoint's manifest, or cut off", where));
  }
  const std::string_view hash = std::string_view(text).substr(kBeforeHash.size(), kHashDigits);
  const std::string_view tail = std::string_view(text).substr(kBeforeHash.size() + kHashDigits);
  if (hash_hex(tail) != hash) {
    throw DataError(fmt::format("{}: its hash differs from its content: the file is damaged\nhint: resume from an earlier step", where));
  }
  const Json document = parse_json(text, where, {.max_bytes = kLargestManifest, .max_depth = kDeepest});
  try {
    return from_json(document.at("content"), where);
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("{}: not a checkpoint's manifest: {}", where, error.what()));
  }
}

}  // namespace scalewright
