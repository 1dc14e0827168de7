#include "model/collectives.h"

#include <torch/csrc/autograd/custom_function.h>

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Rows = std::vector<int64_t>;

// Groups outlive every graph: the mesh owns them.
void save(AutogradContext* context, const Group* group, const char* name, const Rows& rows) {
  context->saved_data["group"] = reinterpret_cast<int64_t>(group);
  context->saved_data[name] = rows;
}
const Group& saved_group(AutogradContext* context) { return *reinterpret_cast<const Group*>(context->saved_data["group"].toInt()); }

struct GatherRows : Function<GatherRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Group* group, const Rows& rows) {
    save(context, group, "rows", rows);
    return group->all_gather(x, rows);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {saved_group(context).reduce_scatter(gradients[0], context->saved_data["rows"].toIntVector()), {}, {}};
  }
};

struct SumScatterRows : Function<SumScatterRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Group* group, const Rows& rows) {
    save(context, group, "rows", rows);
    return group->reduce_scatter(x, rows);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {saved_group(context).all_gather(gradients[0].contiguous(), context->saved_data["rows"].toIntVector()), {}, {}};
  }
};

struct ExchangeRows : Function<ExchangeRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Group* group, const Rows& send, const Rows& receive) {
    save(context, group, "send", send);
    save(context, group, "receive", receive);
    return group->all_to_all(x, send, receive);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {saved_group(context).all_to_all(gradients[0].contiguous(), context->saved_data["receive"].toIntVector(), context->saved_data["send"].toIntVector()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor gather_rows(const at::Tensor& x, const Group& group, const Rows& rows) { return group.alone() ? x : GatherRows::apply(x, &group, rows); }

at::Tensor sum_scatter_rows(const at::Tensor& x, const Group& group, const Rows& rows) { return group.alone() ? x : SumScatterRows::apply(x, &group, rows); }

at::Tensor exchange_rows(const at::Tensor& x, const Group& group, const Rows& send_rows, const Rows& receive_rows) {
  return group.alone() ? x : ExchangeRows::apply(x, &group, send_rows, receive_rows);
}

}  // namespace scalewright
