#include "model/token_layout.h"

#include "base/error.h"
#include "model/projection_part.h"

namespace scalewright {

namespace {

/// First document of each row, and the number of documents.
std::vector<int64_t> row_begins(const Batch& batch) {
  std::vector<int64_t> begins;
  const auto documents = static_cast<int64_t>(batch.offsets.size()) - 1;
  for (int64_t d = 0; d < documents; ++d)
    if (d == 0 || batch.sample_index.empty() || batch.sample_index[d] != batch.sample_index[d - 1]) begins.push_back(d);
  begins.push_back(documents);
  return begins;
}

/// Tokens of rows `rows`, counted from the first of them.
DataRows data_rows(const Batch& batch, const std::vector<int64_t>& begins, const IndexRange& rows) {
  DataRows result{batch.first_row + rows.begin, {}};
  for (int64_t r = rows.begin; r <= rows.end; ++r) result.offsets.push_back(batch.offsets[begins[r]] - batch.offsets[begins[rows.begin]]);
  return result;
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

TokenLayout TokenLayout::whole(const Batch& batch) {
  TokenLayout layout{AttentionRows::whole(batch.offsets), {batch.tokens()}, {}, {batch.tokens()}, 0, at::arange(batch.tokens(), at::kLong), {}, {}};
  const std::vector<int64_t> begins = row_begins(batch);
  layout.own_rows = layout.all_rows = data_rows(batch, begins, {0, static_cast<int64_t>(begins.size()) - 1});
  return layout;
}

std::shared_ptr<const TokenLayout> TokenLayout::of_step(int64_t sequences) {
  TokenLayout layout;
  layout.cp_rows = layout.tp_rows = {sequences};
  layout.own_index = at::arange(sequences, at::kLong);
  return std::make_shared<const TokenLayout>(std::move(layout));
}

LocalBatch localize(const Batch& batch, const Mesh& mesh) {
  LocalBatch local;
  if (mesh.stage().alone()) return {batch.ids, batch.labels, batch.positions, at::arange(batch.tokens(), at::kLong), TokenLayout::whole(batch)};
  const std::vector<int64_t> begins = row_begins(batch);
  const int64_t rows = static_cast<int64_t>(begins.size()) - 1;
  const IndexRange own_rows = split_range(rows, 1, mesh.dp().size(), mesh.dp().rank()), documents{begins[own_rows.begin], begins[own_rows.end]};
  const int64_t first = batch.offsets[documents.begin], ranks = mesh.cp().size(), rank = mesh.cp().rank();
  TokenLayout& layout = local.layout;
  layout.own_rows = data_rows(batch, begins, own_rows);
  layout.all_rows = data_rows(batch, begins, {0, rows});
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
  const IndexRange own = split_range(local.tokens(), 1, mesh.tp().size(), mesh.tp().rank());
  layout.tp_begin = own.begin;
  layout.own_index = local.index.narrow(0, own.begin, own.size());
  return local;
}

}  // namespace scalewright
