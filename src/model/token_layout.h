// Which tokens of a batch are where: data parallelism splits documents, context parallelism splits each document, and between the
// linears tensor parallelism splits what is left (sequence parallelism).
#pragma once
#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "ops/attention_rows.h"
#include "text/batch.h"

namespace scalewright {

/// Rows of the data (samples) among some tokens: row i of them has tokens offsets[i] .. offsets[i+1]-1 and is row first+i of the step.
struct DataRows {
  int64_t first = 0;
  std::vector<int64_t> offsets;
};

/// Uneven splits are fine everywhere, so nothing is ever padded.
struct TokenLayout {
  AttentionRows attention;         // the queries here against the keys of this data-parallel rank's documents
  std::vector<int64_t> cp_rows;    // tokens of each cp rank; the T tokens of "here" are those of one
  at::Tensor cp_order;             // [sum(cp_rows)]: row of the gathered tokens of all cp ranks, in document order; undefined without cp
  std::vector<int64_t> tp_rows;    // how the T tokens are split over tp: t each
  int64_t tp_begin = 0;            // first of this rank's t
  at::Tensor own_index;            // [t]: where they are in the whole batch
  DataRows own_rows, all_rows;     // of this dp rank's documents, and of the whole batch
  int64_t own_tokens() const { return own_index.size(0); }
  /// One process.
  static TokenLayout whole(const Batch& batch);
  /// One process, one token of each of `sequences` (generation).
  static std::shared_ptr<const TokenLayout> of_step(int64_t sequences);
};

using LayoutPtr = std::shared_ptr<const TokenLayout>;   // shared with the graph

/// This rank's tokens, equal on all its tp ranks.
struct LocalBatch {
  at::Tensor ids, labels, positions;   // [T]
  at::Tensor index;                    // [T]: where they are in the whole batch
  TokenLayout layout;
  int64_t tokens() const { return ids.size(0); }
  /// Of a tensor over the T tokens, this rank's t.
  at::Tensor own(const at::Tensor& x_T) const { return x_T.narrow(0, layout.tp_begin, layout.own_tokens()); }
};

/// Documents go to dp ranks in runs of rows (documents of one sample_index stay together). A document of L tokens is cut into 2*cp
/// pieces of nearly L/(2*cp); rank c gets pieces c and 2*cp-1-c, so that all have the same work under causal attention.
LocalBatch localize(const Batch& batch, const Mesh& mesh);

}  // namespace scalewright
