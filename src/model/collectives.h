// Collectives that autograd sees: each one's backward is its adjoint.
#pragma once
#include <vector>

#include "comm/group.h"

namespace scalewright {

/// Rows of all ranks [sum(rows), ...]; backward sums the gradients of this rank's rows. One rank: x itself.
at::Tensor gather_rows(const at::Tensor& x, const Group& group, const std::vector<int64_t>& rows);
/// The sum over ranks of this rank's rows of x [sum(rows), ...]; backward gathers.
at::Tensor sum_scatter_rows(const at::Tensor& x, const Group& group, const std::vector<int64_t>& rows);
/// As Group::all_to_all; backward sends the gradients back.
at::Tensor exchange_rows(const at::Tensor& x, const Group& group, const std::vector<int64_t>& send_rows, const std::vector<int64_t>& receive_rows);

/// This rank's rows of all columns become all rows of its columns: x [rows[rank], sum(columns)] -> [sum(rows), columns[rank]].
at::Tensor exchange_columns(const at::Tensor& x, const Group& group, const std::vector<int64_t>& rows, const std::vector<int64_t>& columns);
/// The way back: x [sum(rows), columns[rank]] -> [rows[rank], sum(columns)].
at::Tensor return_columns(const at::Tensor& x, const Group& group, const std::vector<int64_t>& rows, const std::vector<int64_t>& columns);

}  // namespace scalewright
