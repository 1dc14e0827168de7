#include "model/collectives.h"

#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

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

Rows times(const Rows& rows, int64_t factor) {
  Rows result;
  for (const int64_t n : rows) result.push_back(n * factor);
  return result;
}

at::Tensor columns_out(const Group& group, const at::Tensor& x, const Rows& rows, const Rows& columns) {
  const int64_t own = rows[static_cast<std::size_t>(group.rank())], width = columns[static_cast<std::size_t>(group.rank())];
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : x.split_with_sizes(columns, 1)) parts.push_back(part.flatten());
  return group.all_to_all(at::cat(parts), times(columns, own), times(rows, width)).view({std::accumulate(rows.begin(), rows.end(), int64_t{0}), width});
}

at::Tensor columns_back(const Group& group, const at::Tensor& x, const Rows& rows, const Rows& columns) {
  const int64_t own = rows[static_cast<std::size_t>(group.rank())], width = columns[static_cast<std::size_t>(group.rank())];
  const at::Tensor flat = group.all_to_all(x.contiguous().flatten(), times(rows, width), times(columns, own));
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  for (const int64_t n : columns) {
    parts.push_back(flat.narrow(0, at, n * own).view({own, n}));
    at += n * own;
  }
  return at::cat(parts, 1);
}

template <bool kOut>
struct ExchangeColumns : Function<ExchangeColumns<kOut>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Group* group, const Rows& rows, const Rows& columns) {
    save(context, group, "rows", rows);
    save(context, group, "columns", columns);
    return (kOut ? columns_out : columns_back)(*group, x, rows, columns);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {(kOut ? columns_back : columns_out)(saved_group(context), gradients[0].contiguous(), context->saved_data["rows"].toIntVector(),
                                                context->saved_data["columns"].toIntVector()),
            {}, {}, {}};
  }
};

}  // namespace

at::Tensor gather_rows(const at::Tensor& x, const Group& group, const Rows& rows) { return group.alone() ? x : GatherRows::apply(x, &group, rows); }

at::Tensor sum_scatter_rows(const at::Tensor& x, const Group& group, const Rows& rows) { return group.alone() ? x : SumScatterRows::apply(x, &group, rows); }

at::Tensor exchange_rows(const at::Tensor& x, const Group& group, const Rows& send_rows, const Rows& receive_rows) {
  return group.alone() ? x : ExchangeRows::apply(x, &group, send_rows, receive_rows);
}

at::Tensor exchange_columns(const at::Tensor& x, const Group& group, const Rows& rows, const Rows& columns) {
  return group.alone() ? x : ExchangeColumns<true>::apply(x, &group, rows, columns);
}

at::Tensor return_columns(const at::Tensor& x, const Group& group, const Rows& rows, const Rows& columns) {
  return group.alone() ? x : ExchangeColumns<false>::apply(x, &group, rows, columns);
}

}  // namespace scalewright
