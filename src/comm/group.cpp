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
  at::Tensor all_gather(const at::Tensor& x) const override { return x; }
  at::Tensor reduce_scatter(const at::Tensor& x, Reduce) const override { return x; }

  at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& send_rows,
                        const std::vector<int64_t>& receive_rows) const override {
    SW_CHECK(send_rows.size() == 1 && receive_rows.size() == 1, "rows for {} and {} ranks", send_rows.size(), receive_rows.size());
    SW_CHECK(send_rows[0] == x.size(0) && receive_rows[0] == x.size(0), "sends {} and receives {} of {} rows", send_rows[0],
             receive_rows[0], x.size(0));
    return x;
  }

  void barrier() const override {}
};

}  // namespace

std::unique_ptr<Group> make_single_group() { return std::make_unique<SingleGroup>(); }

}  // namespace scalewright
