#include "model/attention_block.h"
#include <torch/csrc/autograd/custom_function.h>

#include "model/collectives.h"
#include "ops/attention.h"
#include "ops/norm.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// [T, (Hq+2*Hkv)*D] -> contiguous q, k, v; one node instead of three slices whose gradients would each be padded to full width.
struct SplitHeads : Function<SplitHeads> {
  static variable_list forward(AutogradContext*, const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim) {
    auto part = [&](int64_t first, int64_t count) {
      return qkv.narrow(1, first * head_dim, count * head_dim).contiguous().view({qkv.size(0), count, head_dim});
    };
    return {part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads)};
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {at::cat({gradients[0].flatten(1), gradients[1].flatten(1), gradients[2].flatten(1)}, 1), {}, {}, {}};
  }
};

// Puts document b's rows of x [T, Hkv, D] into row b of a fresh cache with room for more.
at::Tensor fill_rows(const at::Tensor& x, const std::vector<int64_t>& offsets) {
  constexpr int64_t kRoom = 32;
  const int64_t sequences = static_cast<int64_t>(offsets.size()) - 1;
  int64_t longest = 0;
  for (int64_t b = 0; b < sequences; ++b) longest = std::max(longest, offsets[b + 1] - offsets[b]);
  at::Tensor cache = at::zeros({sequences, longest + kRoom, x.size(1), x.size(2)}, x.options());
  for (int64_t b = 0; b < sequences; ++b)
    cache[b].narrow(0, 0, offsets[b + 1] - offsets[b]).copy_(x.narrow(0, offsets[b], offsets[b + 1] - offsets[b]));
  return cache;
}

// Writes the new token of each sequence behind its cached ones, doubling the capacity when it is full.
void append_rows(at::Tensor& cache, const at::Tensor& x, const std::vector<int64_t>& lengths) {
  const int64_t needed = *std::max_element(lengths.begin(), lengths.end()) + 1;
  if (needed > cache.size(1)) {
    at::Tensor larger = at::zeros({cache.size(0), 2 * needed, cache.size(2), cache.size(3)}, cache.options());
    larger.narrow(1, 0, cache.size(1)).copy_(cache);
    cache = larger;
  }
  for (std::size_t b = 0; b < lengths.size(); ++b) cache[b][lengths[b]].copy_(x[b]);
}

}  // namespace

AttentionBlock::AttentionBlock(const ModelConfig& config, const Mesh& mesh, std::unique_ptr<Projection> qkv, std::unique_ptr<Projection> o,
                               at::Tensor q_norm, at::Tensor k_norm, const Compute& compute)
    : mesh_(mesh),
      heads_(compute.deterministic ? config.heads : config.heads / mesh.tp().size()),
      kv_heads_(compute.deterministic ? config.kv_heads : std::max<int64_t>(1, config.kv_heads / mesh.tp().size())),
      head_dim_(config.head_dim),
      eps_(config.norm_eps),
      scale_(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
      qkv_(std::move(qkv)),
      o_(std::move(o)),
      q_norm_(std::move(q_norm)),
      k_norm_(std::move(k_norm)),
      compute_(compute) {}

AttentionBlock::Heads AttentionBlock::project(const at::Tensor& x_tH, const RopeTable& rope, Mode mode, const LayoutPtr& layout) {
  const variable_list parts = SplitHeads::apply(qkv_->forward(x_tH, {}, mode, layout), heads_, kv_heads_, head_dim_);
  Heads heads{parts[0], parts[1], parts[2]};
  if (q_norm_.defined()) {
    heads.q = rms_norm(heads.q, q_norm_, eps_);
    heads.k = rms_norm(heads.k, k_norm_, eps_);
  }
  heads.q = apply_rope(heads.q, rope);
  heads.k = apply_rope(heads.k, rope);  // K and V quantizers (KV-cache formats) belong here, after rope
  return heads;
}

/// The keys (or values) of whole documents from those of all cp ranks.
at::Tensor AttentionBlock::all_keys(const at::Tensor& x, const TokenLayout& layout) const {
  if (!layout.cp_order.defined()) return x;
  return gather_rows(x.contiguous(), mesh_.cp(), layout.cp_rows).index_select(0, layout.cp_order.to(x.device()));
}

/// With compute.deterministic a key and value head, with its query heads, is computed by one rank for all tokens of a document: rows of tp
/// and cp ranks are exchanged for columns, and back. This rank's tokens of all heads -> the same of the result [t, heads*D].
at::Tensor AttentionBlock::whole_heads(const Heads& own, const TokenLayout& layout) const {
  const Group &tp = mesh_.tp(), &cp = mesh_.cp();
  if (tp.alone() && cp.alone()) return attention(compute_, own.q, own.k, own.v, layout.attention, scale_).flatten(1);
  const auto shares = [](int64_t heads, const Group& group) {
    std::vector<int64_t> result;
    for (int r = 0; r < group.size(); ++r) result.push_back(split_range(heads, 1, group.size(), r).size());
    return result;
  };
  const std::vector<int64_t> of_tp = shares(kv_heads_, tp), of_cp = shares(of_tp[static_cast<std::size_t>(tp.rank())], cp);
  const int64_t kv = of_cp[static_cast<std::size_t>(cp.rank())], group = heads_ / kv_heads_;
  const auto widths = [&](std::vector<int64_t> heads, int64_t factor) {
    for (int64_t& n : heads) n *= factor * head_dim_;
    return heads;
  };
  const auto spread = [&](const at::Tensor& x, int64_t factor) {
    at::Tensor y = exchange_columns(x.flatten(1), tp, layout.tp_rows, widths(of_tp, factor));
    if (!cp.alone()) y = exchange_columns(y, cp, layout.cp_rows, widths(of_cp, factor)).index_select(0, layout.cp_order.to(y.device()));
    return y.view({y.size(0), kv * factor, head_dim_});
  };
  const at::Tensor q = spread(own.q, group), k = spread(own.k, 1), v = spread(own.v, 1);
  // A rank without a head still takes part in the exchanges of backward.
  at::Tensor mixed = (kv == 0 ? q + k + v : attention(compute_, q, k, v, AttentionRows::whole(layout.attention.offsets), scale_)).flatten(1);
  if (!cp.alone()) mixed = return_columns(mixed.index_select(0, layout.cp_order.argsort().to(mixed.device())), cp, layout.cp_rows, widths(of_cp, group));
  return return_columns(mixed, tp, layout.tp_rows, widths(of_tp, group));
}

at::Tensor AttentionBlock::forward(const at::Tensor& x_tH, const LayoutPtr& layout, const RopeTable& rope, Mode mode, LayerCache* fill) {
  const Heads heads = project(x_tH, rope, mode, layout);
  if (fill) {
    fill->k = fill_rows(heads.k, layout->attention.offsets);
    fill->v = fill_rows(heads.v, layout->attention.offsets);
  }
  const at::Tensor mixed = compute_.deterministic
                               ? whole_heads(heads, *layout)
                               : attention(compute_, heads.q, all_keys(heads.k, *layout), all_keys(heads.v, *layout), layout->attention, scale_).flatten(1);
  return o_->forward(mixed, {}, mode, layout);
}

at::Tensor AttentionBlock::step(const at::Tensor& x_BH, const std::vector<int64_t>& lengths, const RopeTable& rope, Mode mode, LayerCache cache) {
  const LayoutPtr layout = TokenLayout::of_step(x_BH.size(0));
  const Heads heads = project(x_BH, rope, mode, layout);
  append_rows(cache.k, heads.k, lengths);
  append_rows(cache.v, heads.v, lengths);
  std::vector<int64_t> valid = lengths;
  for (int64_t& n : valid) ++n;
  return o_->forward(attention_step(compute_, heads.q, cache.k, cache.v, valid, scale_).flatten(1), {}, mode, layout);
}

void AttentionBlock::collect(std::vector<Projection*>& projections) {
  projections.push_back(qkv_.get());
  projections.push_back(o_.get());
}

}  // namespace scalewright
