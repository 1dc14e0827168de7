// Collectives among a set of ranks: our interface over c10d. Sums are made in rank order, in at least float32, so that a rerun
// gives the same bits.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace scalewright {

enum class Reduce { kSum, kMax };

/// Every collective must be called by all ranks of the group in the same order. Errors: CommError with the operation and the group.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  bool alone() const { return size() == 1; }

  virtual void all_reduce(at::Tensor& x, Reduce op) const = 0;   // in place; a NaN anywhere is a NaN everywhere
  virtual void broadcast(at::Tensor& x, int root) const = 0;     // in place
  /// Rows of every rank in rank order: x [rows[rank], ...] -> [sum(rows), ...].
  virtual at::Tensor all_gather(const at::Tensor& x, const std::vector<int64_t>& rows) const = 0;
  /// The adjoint: x [sum(rows), ...] on every rank -> the sum over ranks of this rank's rows [rows[rank], ...].
  virtual at::Tensor reduce_scatter(const at::Tensor& x, const std::vector<int64_t>& rows) const = 0;
  /// x [sum(send_rows), ...]: the first rows go to rank 0, and so on -> [sum(receive_rows), ...] in rank order.
  virtual at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& send_rows, const std::vector<int64_t>& receive_rows) const = 0;
  /// To one peer; returns at once. The tensor must not change afterwards.
  virtual void send(const at::Tensor& x, int to) const = 0;
  virtual void receive(at::Tensor& x, int from) const = 0;
  virtual void barrier() const = 0;
};

/// The group of one rank: every collective is the identity.
std::unique_ptr<Group> make_single_group();

/// A group that only knows its numbers, for plans: every collective is a BugError.
std::unique_ptr<Group> make_planned_group(int rank, int size);

}  // namespace scalewright
