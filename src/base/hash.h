// Content hashes (XXH3-128): for manifests, caches and the identity of data; not for security.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace scalewright {

/// Streaming XXH3-128.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// 32 lower-case hexadecimal digits of everything so far.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(std::span<const std::byte> bytes);
std::string hash_hex(std::string_view text);
/// Hash of a file's contents. Throws DataError if it cannot be read.
std::string hash_file(const std::filesystem::path& path);

}  // namespace scalewright
