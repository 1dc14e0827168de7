#include "model/token_layout.h"

#include "base/error.h"
#include "model/projection_part.h"

namespace scalewright {

namespace {

/// Documents of this dp rank.
IndexRange own_documents(const Batch& batch, const Group& dp) {
  std::vector<int64_t> row_begin;   // first document of each row
  const auto documents = static_cast<int64_t>(batch.offsets.size()) - 1;
  for (int64_t d = 0; d < documents; ++d)
    if (d == 0 || batch.sample_index.empty() || batch.sample_index[d] != batch.sample_index[d - 1]) row_begin.push_back(d);
  row_begin.push_back(documents);
  const IndexRange rows = split_range(static_cast<int64_t>(row_begin.size()) - 1, 1, dp.size(), dp.rank());
  return {row_begin[rows.begin], row_begin[rows.end]};
}

/// Positions of a document of `length` tokens that cp rank `rank` has: an early piece and a late one.
std::vector<IndexRange> pieces(int64_t length, int64_t ranks, int64_t rank) {
  if (ranks == 1) return {{0, length}};
  return {split_range(length, 1, 2 * ranks, rank), split_range(length, 1, 2 * ranks, 2 * ranks - 1 - rank)};
}

/// The tokens of every cp rank, in the order in which the rank has them, as indices into the tokens of the documents.
std::vector<int64_t> rank_major_order(const std::vector<int64_t>& offsets, int64_t ranks, std::vector<int64_t>& rows) {
  std::vector<int64_t> order;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::size_t before = order.size();
    for (std::size_t d = 0; d + 1 < offsets.size(); ++d)
      for (const IndexRange& piece : pieces(offsets[d + 1] - offsets[d], ranks, rank))
        for (int64_t i = piece.begin; i < piece.end; ++i) order.push_back(offsets[d] + i);
    rows.push_back(static_cast<int64_t>(order.size() - before));
  }
  return order;
}

}  // namespace

TokenLayout TokenLayout::whole(const std::vector<int64_t>& offsets) {
  return {AttentionRows::whole(offsets), {offsets.back()}, {}, {offsets.back()}};
}

LocalBatch localize(const Batch& batch, const Mesh& mesh) {
  LocalBatch local;
  if (mesh.stage().alone()) return {batch.ids, batch.labels, batch.positions, at::arange(batch.tokens(), at::kLong), TokenLayout::whole(batch.offsets)};
  const IndexRange documents = own_documents(batch, mesh.dp());
  const int64_t first = batch.offsets[documents.begin], ranks = mesh.cp().size(), rank = mesh.cp().rank();
  TokenLayout& layout = local.layout;
  for (int64_t d = documents.begin; d <= documents.end; ++d) layout.attention.offsets.push_back(batch.offsets[d] - first);
  const std::vector<int64_t> order = rank_major_order(layout.attention.offsets, ranks, layout.cp_rows);
  if (ranks > 1) layout.cp_order = at::argsort(at::tensor(order, at::kLong));
  int64_t row = 0;
  for (int64_t d = 0; d < documents.size(); ++d)
    for (const IndexRange& piece : pieces(layout.attention.offsets[d + 1] - layout.attention.offsets[d], ranks, rank)) {
      layout.attention.segments.push_back({d, row, piece.begin, piece.size()});
      row += piece.size();
    }
  int64_t before = 0;
  for (int64_t r = 0; r < rank; ++r) before += layout.cp_rows[r];
  local.index = at::tensor(std::vector<int64_t>(order.begin() + before, order.begin() + before + layout.cp_rows[rank]), at::kLong) + first;
  local.ids = batch.ids.index_select(0, local.index);
  local.labels = batch.labels.index_select(0, local.index);
  local.positions = batch.positions.index_select(0, local.index);
  for (int r = 0; r < mesh.tp().size(); ++r) layout.tp_rows.push_back(split_range(local.tokens(), 1, mesh.tp().size(), r).size());
  return local;
}

}  // namespace scalewright
