// The linear under `deterministic: layout`: every number of it is made in one way, whatever the layout.
#pragma once
#include <memory>

#include "model/projection_part.h"
#include "model/row_sums.h"
#include "model/token_layout.h"
#include "ops/compute.h"
#include "quant/weight_quantizer.h"

namespace scalewright {

/// Rows of experts, sorted by expert: `offsets` [E+1]. `keys` [rows]: token of the global micro-batch times choices plus choice, by which rows
/// of one expert are put into one order wherever they come from.
struct RoutedRows {
  std::vector<int64_t> offsets;   // empty: not routed
  at::Tensor keys = {};           // undefined where no canonical gradient is wanted
  int64_t choices = 1;
};

/// What a canonical linear is given besides tensors. Shared with the graph, as backward needs it.
struct CanonicalCall {
  Compute compute;
  const Mesh* mesh;
  ProjectionPart part;                        // kRows (whole columns), kExperts or kNone
  std::shared_ptr<const TokenLayout> layout;
  RoutedRows routed;
  const WeightQuantizer* quantizer = nullptr;   // nullptr: nothing is trained
  RowSums* sums = nullptr;                      // of d(alpha), by data row
};

/// y = W x + b for this rank's own tokens x [t,K] -> [t,N]. Tensor parallelism only spreads the storage of `w` [E,n,K] and `bias` [E,n]:
/// the rows are gathered for the product, so that a token's numbers do not depend on who else holds what. d(alpha) is computed row of the
/// data by row of the data from all of that row's tokens, gathered in their order, for the part that is held here; it goes to `sums`
/// instead of alpha.grad. (Sources of variation that this removes: partial sums over tp, over the tokens of cp, sp and ep ranks, and over
/// micro-batches.) Costs the traffic of the weights, and dW once a cp rank and a replica of the experts.
at::Tensor canonical_linear(const std::shared_ptr<const CanonicalCall>& call, const at::Tensor& x_tK, const at::Tensor& w_EnK, const at::Tensor& bias_En,
                            const at::Tensor& source_EnK, const at::Tensor& alpha);

}  // namespace scalewright
