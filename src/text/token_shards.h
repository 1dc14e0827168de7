// The files of prepared data: manifest.json and shard_NNNNN.safetensors in one folder.
//
// A shard holds whole rows: `ids` int32 [N] and `is_target` uint8 [N] of its documents one after another, `doc_offsets` int64 [D+1]
// (token at which each document begins) and `row_offsets` int64 [R+1] (document at which each row begins).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/batch.h"

namespace scalewright {

inline constexpr const char* kTokenShardsKind = "scalewright-token-shards";
inline constexpr int64_t kTokenShardsVersion = 1;

/// Whether `folder` holds a manifest of ours (readable, of the right kind); says nothing about the shards.
bool is_token_shards(const std::filesystem::path& folder);

/// The manifest of a prepared folder. Throws DataError when it is missing, malformed, or of another kind or version.
Json read_shards_manifest(const std::filesystem::path& folder);

/// Collects rows into shards of about `shard_tokens` tokens, written to `folder` as they fill, so memory does not grow with the data.
class TokenShardWriter {
 public:
  explicit TokenShardWriter(std::filesystem::path folder, int64_t shard_tokens = int64_t{1} << 24);
  void add_row(const std::vector<Document>& documents);
  /// Writes the last shard and manifest.json: `description` (what was prepared, and how) plus counts, shards and content hash.
  /// Returns the content hash: of the shards' hashes in order.
  std::string finish(const OrderedJson& description);

  int64_t rows() const { return rows_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }
  int64_t target_tokens() const { return target_tokens_; }

 private:
  void write_shard();

  std::filesystem::path folder_;
  int64_t shard_tokens_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> is_target_;
  std::vector<int64_t> doc_offsets_{0}, row_offsets_{0};
  OrderedJson shards_ = OrderedJson::array();
  int64_t rows_ = 0, documents_ = 0, tokens_ = 0, target_tokens_ = 0, max_id_ = 0;
};

}  // namespace scalewright
