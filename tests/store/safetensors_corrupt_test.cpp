// Files that must be refused, each for its own reason and with a message that names the file.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "store/safetensors.h"
#include "temporary_folder.h"

namespace scalewright {
namespace {

std::string little_endian(std::uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

std::string file_of(const std::string& header, std::size_t data_bytes) { return little_endian(header.size()) + header + std::string(data_bytes, '\1'); }

/// A file of one tensor "x" described by `fields`.
std::string one_tensor(const std::string& fields, std::size_t data_bytes) { return file_of("{\"x\":{" + fields + "}}", data_bytes); }

struct Case {
  std::string name, bytes, expected;   // expected: part of the message
};

std::vector<Case> corrupt_files() {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string two = R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":)";
  return {
      {"empty file", "", "is empty"},
      {"seven bytes", std::string(7, '\0'), "too few"},
      {"header of 0 bytes", little_endian(0), "too short"},
      {"header of 1 byte", file_of("{", 0), "too short"},
      {"header of 7 bytes in a shorter file", little_endian(7) + "{}", "only 2 follow"},
      {"header of 100 MB and 1", little_endian(100'000'001) + "{}", "more than the format's limit"},
      {"header of 2^63 bytes", little_endian(std::uint64_t{1} << 63) + "{}", "more than the format's limit"},
      {"header of 2^64-1 bytes", little_endian(~std::uint64_t{0}) + "{}", "more than the format's limit"},
      {"not JSON", file_of("{\"x\":}", 0), "not valid JSON"},
      {"an array", file_of("[]", 0), "does not begin with"},
      {"a space first", file_of(" {}", 0), "does not begin with"},
      {"byte order mark", file_of("\xef\xbb\xbf{}", 0), "does not begin with"},
      {"text after the object", file_of("{}{}", 0), "not valid JSON"},
      {"NUL padding", file_of(std::string("{}\0\0", 4), 0), "not valid JSON"},
      {"lone surrogate in a name", file_of(R"({"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0), "not valid JSON"},
      {"name not UTF-8", file_of("{\"\xff\":{}}", 0), "not valid JSON"},
      {"nested 100000 deep", file_of("{\"x\":" + std::string(100000, '['), 0), "nested more than"},
      {"duplicate tensor", file_of("{\"x\":{" + good + "},\"x\":{" + good + "}}", 8), "\"x\" appears twice"},
      {"duplicate key of a tensor", one_tensor(good + R"(,"dtype":"F32")", 8), "\"dtype\" appears twice"},
      {"tensor is a list", file_of("{\"x\":[]}", 0), "tensor x: expected an object"},
      {"no dtype", one_tensor(R"("shape":[2],"data_offsets":[0,8])", 8), "\"dtype\" is missing"},
      {"no shape", one_tensor(R"("dtype":"F32","data_offsets":[0,8])", 8), "\"shape\" is missing"},
      {"no offsets", one_tensor(R"("dtype":"F32","shape":[2])", 8), "\"data_offsets\" is missing"},
      {"unknown key", one_tensor(good + R"(,"strides":[1])", 8), "unknown key \"strides\""},
      {"dtype is a number", one_tensor(R"("dtype":32,"shape":[2],"data_offsets":[0,8])", 8), "wrong type"},
      {"dtype of four bits", one_tensor(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])", 1), "tensor x: unknown dtype \"F4\""},
      {"dtype in lower case", one_tensor(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])", 8), "unknown dtype \"f32\""},
      {"negative size", one_tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", 8), "non-negative integer"},
      {"fractional size", one_tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])", 8), "non-negative integer"},
      {"size as text", one_tensor(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])", 8), "non-negative integer"},
      {"size of 2^63", one_tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8])", 8), "out of range"},
      {"size of 2^70", one_tensor(R"("dtype":"U8","shape":[1180591620717411303424],"data_offsets":[0,8])", 8), "non-negative integer"},
      {"shape product 2^64 = 0", one_tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0), "overflows"},
      {"bytes overflow", one_tensor(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])", 0), "overflows"},
      {"huge sizes beside a zero", one_tensor(R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", 0), "overflows"},
      {"65 dimensions", one_tensor("\"dtype\":\"U8\",\"shape\":[1" + [] { std::string s; for (int i = 0; i < 64; ++i) s += ",1"; return s; }() + "],\"data_offsets\":[0,1]", 1), "65 dimensions"},
      {"span too short for the shape", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4), "do not span the 8 bytes"},
      {"span too long for the shape", one_tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])", 8), "do not span the 4 bytes"},
      {"offsets swapped", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8), "do not span"},
      {"one offset", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])", 8), "has 1 numbers"},
      {"offset of 2^64-1", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615])", 8), "out of range"},
      {"truncated data", one_tensor(good, 7), "truncated"},
      {"data far away", one_tensor(R"("dtype":"U8","shape":[1],"data_offsets":[4611686018427387904,4611686018427387905])", 1), "a hole"},
      {"bytes after the last tensor", one_tensor(good, 9), "1 bytes after the last tensor"},
      {"data without tensors", file_of("{}", 4), "4 bytes after the last tensor"},
      {"hole at the beginning", one_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[1,5])", 5), "a hole of 1 bytes"},
      {"overlap", file_of(two + "[2,6]}}", 6), "tensor y: overlaps"},
      {"same bytes twice", file_of(two + "[0,4]}}", 4), "overlaps"},
      {"hole between", file_of(two + "[5,9]}}", 9), "tensor y: a hole of 1 bytes"},
      {"metadata is a list", file_of(R"({"__metadata__":[]})", 0), "__metadata__ is not an object"},
      {"metadata value is a number", file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__.a is not a string"},
  };
}

TEST(CorruptSafetensors, EachIsRefusedForItsReason) {
  const TemporaryFolder folder;
  const auto cases = corrupt_files();
  EXPECT_GE(cases.size(), 25u);
  for (const Case& one : cases) {
    const auto path = folder.write("bad.safetensors", one.bytes);
    try {
      SafetensorsFile file(path);
      ADD_FAILURE() << one.name << " was accepted";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(one.expected), std::string::npos) << one.name << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << one.name << ": " << error.what();
    }
  }
}

TEST(CorruptSafetensors, MissingFilesAndFoldersAreRefused) {
  const TemporaryFolder folder;
  EXPECT_THROW(SafetensorsFile(folder.path() / "none"), DataError);
  EXPECT_THROW(SafetensorsFile(folder.path()), DataError);
  EXPECT_THROW(SafetensorsFile("/dev/zero"), DataError);
}

TEST(CorruptSafetensors, OddButLegalFilesAreRead) {
  const TemporaryFolder folder;
  EXPECT_EQ(SafetensorsFile(folder.write("a", file_of("{}", 0))).entries().size(), 0u);
  EXPECT_EQ(SafetensorsFile(folder.write("b", file_of("{}     ", 0))).entries().size(), 0u);
  const SafetensorsFile odd(folder.write("c", file_of(R"({"x":{"shape":[1],"data_offsets":[1,5],"dtype":"F32"},"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 5)));
  EXPECT_EQ(odd.tensor("x").item<float>(), [] { float x; std::memset(&x, 1, 4); return x; }());
  EXPECT_EQ(odd.tensor("").item<int>(), 1);
}

/// Whatever bytes change in the header, the file is read whole or refused: no crash, no access out of bounds.
TEST(CorruptSafetensors, RandomChangesOfTheHeaderNeverCrash) {
  const TemporaryFolder folder;
  save_tensors(folder.path() / "good", {{"a", at::zeros({3, 2})}, {"b", at::zeros({5}, at::kByte)}, {"c", at::zeros({}, at::kLong)}}, {{"k", "v"}});
  const std::string good = folder.read("good");
  const std::size_t header = SafetensorsFile(folder.path() / "good").header_bytes().size();
  const Philox random(11, 1);
  const std::string letters = "{}[]\",:0123456789eE.-+ \\ux";
  int refused = 0;
  for (int trial = 0; trial < 600; ++trial) {
    std::string bytes = good;
    for (int change = 0; change < 1 + trial % 3; ++change) {
      const auto at = random.below(10 * trial + change, header);
      bytes[at] = trial % 2 ? letters[random.below(10 * trial + 5 + change, letters.size())] : static_cast<char>(random.bits(10 * trial + 5 + change));
    }
    try {
      const SafetensorsFile file(folder.write("bad", bytes));
      for (const auto& entry : file.entries()) file.tensor(entry.name).clone();
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 400);   // most changes break the header
}

}  // namespace
}  // namespace scalewright
