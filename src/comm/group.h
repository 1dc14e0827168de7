// Collectives among a set of ranks: our interface over c10d. One rank now; Gloo and NCCL implement the same interface.
#pragma once
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace scalewright {

enum class Reduce { kSum, kMax, kMin };

/// Every call must be made by all ranks of the group in the same order. Tensors are contiguous. Errors: CommError.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void all_reduce(at::Tensor& x, Reduce op) const = 0;                               // in place
  virtual void broadcast(at::Tensor& x, int root) const = 0;                                 // in place
  virtual at::Tensor all_gather(const at::Tensor& x) const = 0;                              // [n, ...] -> [size*n, ...]
  virtual at::Tensor reduce_scatter(const at::Tensor& x, Reduce op) const = 0;               // [size*n, ...] -> [n, ...]
  virtual at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& send_rows,  // rows to and from each rank
                                const std::vector<int64_t>& receive_rows) const = 0;
  virtual void barrier() const = 0;
};

/// The group of one rank: every collective is the identity.
std::unique_ptr<Group> make_single_group();

}  // namespace scalewright
