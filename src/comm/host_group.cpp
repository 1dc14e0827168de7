#include "comm/host_group.h"

namespace scalewright {
namespace {

class HostGroup final : public Group {
 public:
  explicit HostGroup(std::unique_ptr<Group> transport) : transport_(std::move(transport)) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }

  void all_reduce(at::Tensor& x, Reduce op) const override {
    in_place(x, [&](at::Tensor& t) { transport_->all_reduce(t, op); });
  }
  void broadcast(at::Tensor& x, int root) const override {
    in_place(x, [&](at::Tensor& t) { transport_->broadcast(t, root); });
  }
  at::Tensor all_gather(const at::Tensor& x, const std::vector<int64_t>& rows) const override {
    return transport_->all_gather(x.to(at::kCPU), rows).to(x.device());
  }
  at::Tensor reduce_scatter(const at::Tensor& x, const std::vector<int64_t>& rows) const override {
    return transport_->reduce_scatter(x.to(at::kCPU), rows).to(x.device());
  }
  at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& send_rows, const std::vector<int64_t>& receive_rows) const override {
    return transport_->all_to_all(x.to(at::kCPU), send_rows, receive_rows).to(x.device());
  }
  void send(const at::Tensor& x, int to) const override { transport_->send(x.to(at::kCPU), to); }
  void receive(at::Tensor& x, int from) const override {
    in_place(x, [&](at::Tensor& t) { transport_->receive(t, from); });
  }
  void barrier() const override { transport_->barrier(); }

 private:
  template <class Call>
  static void in_place(at::Tensor& x, Call call) {
    if (x.is_cpu()) return call(x);
    at::NoGradGuard no_grad;
    at::Tensor there = x.detach().to(at::kCPU);
    call(there);
    x.detach().copy_(there);
  }

  std::unique_ptr<Group> transport_;
};

}  // namespace

std::unique_ptr<Group> make_host_group(std::unique_ptr<Group> transport) { return std::make_unique<HostGroup>(std::move(transport)); }

}  // namespace scalewright
