// Documents to rows.
#pragma once
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "text/batch.h"

namespace scalewright {

/// Rows of at most `seq_len` tokens made of whole documents, by best fit among a bounded number of open rows, so that memory does not
/// grow with the data: a document goes into the open row that it fills best; when none has room and too many are open, the fullest is
/// written. Without packing each document is a row. The order is a function of the documents only.
class Packer {
 public:
  using Sink = std::function<void(const std::vector<Document>& row)>;
  Packer(bool packing, int64_t seq_len, Sink sink) : packing_(packing), seq_len_(seq_len), sink_(std::move(sink)) {}

  /// `document` has 1 .. seq_len tokens.
  void add(Document document);
  /// Writes the open rows, oldest first.
  void finish();

 private:
  // Open rows by (free tokens, age): lower_bound finds the best fit, the oldest first.
  using Key = std::pair<int64_t, int64_t>;

  bool packing_;
  int64_t seq_len_;
  Sink sink_;
  std::map<Key, std::vector<Document>> open_;
  int64_t next_age_ = 0;
};

}  // namespace scalewright
