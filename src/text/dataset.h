// Rows of tokens by index, and the order in which training visits them.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "text/batch.h"

namespace scalewright {

/// A finite, indexable set of rows; a row is one or several documents.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t size() const = 0;
  virtual std::vector<Document> row(int64_t index) const = 0;   // sample_index of each document = index
  virtual std::string content_hash() const = 0;                 // identity of the data
};

/// Prepared token shards (memory-mapped). Throws DataError naming the file.
std::unique_ptr<RowSource> open_token_shards(const std::filesystem::path& folder);

/// Random tokens: token j of row i is a function of (seed, i, j) only; all tokens are targets; `size` rows of `seq_len`.
std::unique_ptr<RowSource> random_rows(int64_t vocabulary, int64_t seq_len, std::uint64_t seed, int64_t size);

/// The row that training visits as its `global_index`-th: a permutation of 0..n-1 in each epoch, a function of
/// (seed, epoch, position) only, computed in O(1) memory (a Feistel network with cycle walking).
int64_t visit_row(std::uint64_t seed, int64_t n, int64_t global_index);

/// Rows global_begin .. global_begin+count-1 of the visiting order as one batch.
Batch make_batch(const RowSource& source, std::uint64_t seed, int64_t global_begin, int64_t count);
/// Rows begin .. begin+count-1 in file order (validation, calibration).
Batch make_ordered_batch(const RowSource& source, int64_t begin, int64_t count);

}  // namespace scalewright
