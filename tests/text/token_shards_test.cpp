// Token shards on disk, and packing.
#include "text/token_shards.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "store/files.h"
#include "store/safetensors.h"
#include "text/dataset.h"
#include "text/line_reader.h"
#include "text/packer.h"

namespace scalewright {
namespace {

class TokenShardsFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("token_shards_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Rows of one to three documents, in shards of about 20 tokens.
  std::vector<std::vector<Document>> write_rows(int64_t count) const {
    std::vector<std::vector<Document>> rows;
    TokenShardWriter writer(folder_, 20);
    const Philox random(1, 0);
    std::uint64_t draw = 0;
    for (int64_t r = 0; r < count; ++r) {
      std::vector<Document> row;
      for (std::uint64_t d = random.below(draw++, 3); row.size() <= d;) {
        Document document;
        document.sample_index = r;
        for (std::uint64_t n = 1 + random.below(draw++, 6); document.ids.size() < n;) {
          document.ids.push_back(static_cast<std::int32_t>(random.below(draw++, 1000)));
          document.is_target.push_back(static_cast<std::uint8_t>(random.below(draw++, 2)));
        }
        row.push_back(std::move(document));
      }
      writer.add_row(row);
      rows.push_back(std::move(row));
    }
    writer.finish({{"made_by", "a test"}});
    return rows;
  }

  /// The message of the DataError that opening the folder throws.
  std::string refusal() const {
    try {
      open_token_shards(folder_);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(TokenShardsFolder, GiveBackTheRows) {
  const auto rows = write_rows(25);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "shard_00002.safetensors"));
  const auto source = open_token_shards(folder_);
  ASSERT_EQ(source->size(), 25);
  for (int64_t r : {24, 0, 13, 1, 7, 8, 9, 10, 11, 12}) {
    const std::vector<Document> row = source->row(r);
    ASSERT_EQ(row.size(), rows[r].size());
    for (std::size_t d = 0; d < row.size(); ++d) {
      EXPECT_EQ(row[d].ids, rows[r][d].ids);
      EXPECT_EQ(row[d].is_target, rows[r][d].is_target);
      EXPECT_EQ(row[d].sample_index, r);
    }
  }
  EXPECT_EQ(read_shards_manifest(folder_).at("rows"), 25);
  EXPECT_EQ(source->content_hash(), read_shards_manifest(folder_).at("content_hash"));
}

TEST_F(TokenShardsFolder, RefuseAFlippedByte) {
  write_rows(10);
  const std::filesystem::path shard = folder_ / "shard_00001.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() - 3] ^= 1;
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_NE(refusal().find("shard_00001"), std::string::npos) << refusal();
}

TEST_F(TokenShardsFolder, RefuseATruncatedOrMissingShard) {
  write_rows(10);
  const std::filesystem::path shard = folder_ / "shard_00000.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 4);
  EXPECT_NE(refusal().find("shard_00000"), std::string::npos) << refusal();
  std::filesystem::remove(shard);
  EXPECT_NE(refusal().find("missing"), std::string::npos) << refusal();
}

TEST_F(TokenShardsFolder, RefuseOffsetsThatLeadOutside) {
  // A shard that agrees with its manifest but whose offsets would read beyond the tokens.
  TokenShardWriter writer(folder_);
  writer.add_row({{{1, 2, 3}, {1, 1, 1}, 0}});
  writer.finish({{"made_by", "a test"}});
  const std::filesystem::path shard = folder_ / "shard_00000.safetensors";
  auto tensors = load_tensors(shard);
  std::map<std::string, at::Tensor> changed;
  for (const auto& [name, tensor] : tensors) changed[name] = tensor.clone();
  tensors.clear();
  changed["doc_offsets"][1] = 1000;
  save_tensors(shard, changed);
  EXPECT_NE(refusal().find("doc_offsets"), std::string::npos) << refusal();
}

TEST_F(TokenShardsFolder, RefuseOtherFolders) {
  EXPECT_FALSE(is_token_shards(folder_));
  EXPECT_THROW(open_token_shards(folder_), DataError);
  write_file_atomic(folder_ / "manifest.json", R"({"kind": "something else", "shards": []})");
  EXPECT_FALSE(is_token_shards(folder_));
  EXPECT_THROW(open_token_shards(folder_), DataError);
  write_file_atomic(folder_ / "manifest.json", R"({"kind": "scalewright-token-shards", "version": 99, "shards": []})");
  EXPECT_NE(refusal().find("version 99"), std::string::npos) << refusal();
  write_file_atomic(folder_ / "manifest.json", R"({"kind": "scalewright-token-shards", "version": 1, "content_hash": "x", "shards": [{"file": "../up"}]})");
  EXPECT_NE(refusal(), "");
}

TEST(Packer, KeepsDocumentsWholeAndRowsShort) {
  const Philox random(2, 0);
  std::map<std::int32_t, std::size_t> lengths;  // of each document, by its first token
  std::set<std::int32_t> seen;
  std::size_t rows = 0, tokens = 0;
  Packer packer(true, 64, [&](const std::vector<Document>& row) {
    std::size_t length = 0;
    for (const Document& document : row) {
      EXPECT_EQ(document.ids.size(), lengths.at(document.ids[0])) << "a document was cut";
      EXPECT_TRUE(seen.insert(document.ids[0]).second) << "a document came twice";
      length += document.ids.size();
    }
    EXPECT_LE(length, 64u);
    ++rows;
  });
  for (std::int32_t i = 0; i < 5000; ++i) {
    Document document;
    document.ids.assign(1 + random.below(i, 64), i);
    document.is_target.assign(document.ids.size(), 1);
    lengths[i] = document.ids.size();
    tokens += document.ids.size();
    packer.add(std::move(document));
  }
  packer.finish();
  EXPECT_EQ(seen.size(), 5000u);
  // Best fit of lengths uniform over the whole row fills it well above 90% (Coffman, Garey, Johnson 1996); 95% here.
  EXPECT_LT(rows * 64 * 0.95, tokens);
}

TEST(Packer, WithoutPackingARowIsADocument) {
  std::vector<std::size_t> sizes;
  Packer packer(false, 64, [&](const std::vector<Document>& row) { sizes.push_back(row.size() * row.at(0).ids.size()); });
  packer.add({{1, 2}, {1, 1}, 0});
  packer.add({{3}, {1}, 0});
  packer.finish();
  EXPECT_EQ(sizes, (std::vector<std::size_t>{2, 1}));
}

TEST(LineReader, NumbersLinesAndSkipsBlankOnes) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "line_reader.txt";
  std::ofstream(path, std::ios::binary) << "\xef\xbb\xbf" "a\r\n\n  \nb" << std::string(kMaxLineBytes, 'x') << "\nlast";
  LineReader reader(path);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.line(), "a");
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.number(), 4);
  EXPECT_TRUE(reader.too_long());
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.line(), "last");
  EXPECT_EQ(reader.number(), 5);
  EXPECT_FALSE(reader.next());
  std::filesystem::remove(path);
  EXPECT_THROW(LineReader missing(path), DataError);
}

}  // namespace
}  // namespace scalewright
