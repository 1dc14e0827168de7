#include "base/hash.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace scalewright {
namespace {

TEST(Hash, KnownAnswers) {
  // xxhsum -H2 and the Python package xxhash print the same digits.
  EXPECT_EQ(hash_hex(std::string_view()), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_hex(std::string_view("abc")), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, StreamedInPiecesEqualsWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 131 >> 3);
  for (const std::size_t piece : {1u, 7u, 64u, 255u, 1024u, 4999u}) {
    Hasher hasher;
    for (std::size_t at = 0; at < text.size(); at += piece) hasher.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(hasher.hex(), hash_hex(text)) << piece;
  }
}

TEST(Hash, HexMayBeAskedInTheMiddle) {
  Hasher hasher;
  hasher.update("ab");
  EXPECT_EQ(hasher.hex(), hash_hex(std::string_view("ab")));
  hasher.update("c");
  EXPECT_EQ(hasher.hex(), hash_hex(std::string_view("abc")));
}

TEST(Hash, FileEqualsItsContents) {
  const auto path = std::filesystem::path(testing::TempDir()) / "hash_test_file";
  const std::string contents(3'000'001, 'x');   // more than one chunk of the reader
  std::ofstream(path, std::ios::binary) << contents;
  EXPECT_EQ(hash_file(path), hash_hex(contents));
  std::filesystem::remove(path);
  EXPECT_THROW(hash_file(path), DataError);
  EXPECT_THROW(hash_file(testing::TempDir()), DataError);
}

}  // namespace
}  // namespace scalewright
