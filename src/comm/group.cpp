#include "comm/group.h"

#include "base/error.h"

namespace scalewright {

namespace {

class SingleGroup final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce(at::Tensor&, Reduce) const override {}
  void broadcast(at::Tensor&, int root) const override { SW_CHECK(root == 0, "root {} of a group of one", root); }
  at::Tensor all_gather(const at::Tensor& x, const std::vector<int64_t>& rows) const override { return checked(x, rows); }
  at::Tensor reduce_scatter(const at::Tensor& x, const std::vector<int64_t>& rows) const override { return checked(x, rows); }

  at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& send_rows, const std::vector<int64_t>& receive_rows) const override {
    checked(x, send_rows);
    return checked(x, receive_rows);
  }

  void send(const at::Tensor&, int to) const override { throw BugError(fmt::format("a group of one has no peer {}", to)); }
  void receive(at::Tensor&, int from) const override { throw BugError(fmt::format("a group of one has no peer {}", from)); }
  void barrier() const override {}

 private:
  static const at::Tensor& checked(const at::Tensor& x, const std::vector<int64_t>& rows) {
    SW_CHECK(rows.size() == 1 && rows[0] == x.size(0), "rows for {} ranks and {} rows", rows.size(), x.size(0));
    return x;
  }
};

class PlannedGroup final : public Group {
 public:
  PlannedGroup(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(at::Tensor&, Reduce) const override { refuse(); }
  void broadcast(at::Tensor&, int) const override { refuse(); }
  at::Tensor all_gather(const at::Tensor&, const std::vector<int64_t>&) const override { refuse(); }
  at::Tensor reduce_scatter(const at::Tensor&, const std::vector<int64_t>&) const override { refuse(); }
  at::Tensor all_to_all(const at::Tensor&, const std::vector<int64_t>&, const std::vector<int64_t>&) const override { refuse(); }
  void send(const at::Tensor&, int) const override { refuse(); }
  void receive(at::Tensor&, int) const override { refuse(); }
  void barrier() const override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw BugError("a planned group has no other ranks to talk to"); }
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Group> make_planned_group(int rank, int size) { return std::make_unique<PlannedGroup>(rank, size); }

std::unique_ptr<Group> make_single_group() { return std::make_unique<SingleGroup>(); }

}  // namespace scalewright
