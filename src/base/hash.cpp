#include "base/hash.h"

#include <fstream>
#include <vector>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"

namespace scalewright {

namespace {

std::string to_hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh);
  XXH3_128bits_reset(&state_->xxh);
}

Hasher::~Hasher() = default;

void Hasher::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

void Hasher::update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }

std::string Hasher::hex() const { return to_hex(XXH3_128bits_digest(&state_->xxh)); }

std::string hash_hex(std::span<const std::byte> bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

std::string hash_hex(std::string_view text) { return hash_hex(std::as_bytes(std::span(text.data(), text.size()))); }

std::string hash_file(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) throw DataError(fmt::format("{}: is a folder, not a file", path.string()));
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw DataError(fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno)));
  Hasher hasher;
  std::vector<char> chunk(1 << 20);
  while (stream) {
    stream.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    hasher.update(std::string_view(chunk.data(), static_cast<std::size_t>(stream.gcount())));
  }
  if (stream.bad()) throw DataError(fmt::format("{}: cannot be read", path.string()));
  return hasher.hex();
}

}  // namespace scalewright
