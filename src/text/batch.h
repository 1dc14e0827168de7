// What a model computes on: documents one after another, without padding.
#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace scalewright {

/// A micro-batch of T tokens. A row of the data may hold several documents; attention and positions restart at each.
struct Batch {
  at::Tensor ids;                      // [T] int64
  at::Tensor labels;                   // [T] int64: the token to be predicted AT this position (already shifted), -100: no loss
  at::Tensor positions;                // [T] int64: position within the document
  std::vector<int64_t> offsets;        // [D+1]: first token of each document, and T
  std::vector<int64_t> sample_index;   // [D]: global sample (row) index each document came from
  int64_t first_row = 0;               // place of its first row (sample) in the optimizer step
  int64_t tokens() const { return offsets.back(); }
  int64_t valid_tokens() const;        // labels that are not -100
};

/// From [B,S] ids and labels as transformers takes them (unshifted, -100 ignored): B documents of S tokens; the last position of
/// each has label -100.
Batch batch_from_rows(const at::Tensor& ids_BS, const at::Tensor& labels_BS);

/// From documents: ids and, for each token, whether it counts as a target; labels are shifted here.
struct Document {
  std::vector<int32_t> ids;
  std::vector<std::uint8_t> is_target;  // of ids[i] itself: 1 = the prediction of this token enters the loss
  int64_t sample_index = 0;
};
Batch batch_from_documents(const std::vector<Document>& documents);

}  // namespace scalewright
