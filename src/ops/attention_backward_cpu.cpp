#include "ops/attention_blocks.h"
#include "ops/parallel_tasks.h"
#include "ops/vector_math.h"

namespace scalewright {
namespace {

/// One row: s (scores) becomes P = exp(s - lse), 0 from `valid` on, and dp becomes dS = P (dp - delta).
template <typename A>
SW_VECTOR_CLONES void score_gradient_row(A* s, A* dp, int64_t valid, int64_t columns, A lse, A delta) {
  for (int64_t c = 0; c < valid; ++c) {
    s[c] = fast_exp(s[c] - lse);
    dp[c] = s[c] * (dp[c] - delta);
  }
  for (int64_t c = valid; c < columns; ++c) s[c] = dp[c] = 0;
}

template <typename T>
SW_VECTOR_CLONES Accurate<T> row_dot(const T* a, const T* b, int64_t width) {
  return lane_sum<Accurate<T>>(width, [&](int64_t i) { return load(a[i]) * load(b[i]); });
}

template <typename T>
struct Backward {
  using A = Accurate<T>;
  Heads<const T> dout, q, k, v, out;
  Heads<T> dq, dk, dv;
  const A* lse;
  int64_t tokens, group, width, padded;
  A scale;
  BlockGemm<A> gemm = block_kernels().front().of<A>();

  struct Scratch {
    TransposedBlocks<T> keys_t, values_t;
    std::vector<A> keys, dkeys, dvalues;           // [length][padded]
    std::vector<A> query, dout, dquery;            // [kAttentionBlock][padded]
    std::vector<A> scores, dscores;                // [kAttentionBlock][kAttentionBlock]
  };

  void query_block(Scratch& s, int64_t begin, int64_t first, int64_t rows, int64_t head) const {
    constexpr int64_t kB = kAttentionBlock;
    pack_rows(q.at(begin + first, head), q.token_stride, rows, width, scale, s.query.data(), padded);
    pack_rows(dout.at(begin + first, head), dout.token_stride, rows, width, A{1}, s.dout.data(), padded);
    std::fill(s.dquery.begin(), s.dquery.end(), A{0});
    A delta[kB];
    for (int64_t r = 0; r < rows; ++r) delta[r] = row_dot(dout.at(begin + first + r, head), out.at(begin + first + r, head), width);
    const A* row_lse = lse + head * tokens + begin + first;
    for (int64_t key = 0; key <= first; key += kB) {
      const bool diagonal = key == first;
      const int64_t depth = diagonal ? rows : kB, columns = pad_lanes<A>(depth);
      gemm(rows, columns, width, s.query.data(), padded, 1, s.keys_t.block(key / kB), kB, s.scores.data(), kB, false);
      gemm(rows, columns, width, s.dout.data(), padded, 1, s.values_t.block(key / kB), kB, s.dscores.data(), kB, false);
      for (int64_t r = 0; r < rows; ++r)
        score_gradient_row(s.scores.data() + r * kB, s.dscores.data() + r * kB, diagonal ? r + 1 : depth, columns, row_lse[r], delta[r]);
      gemm(depth, padded, rows, s.scores.data(), 1, kB, s.dout.data(), padded, s.dvalues.data() + key * padded, padded, true);
      gemm(depth, padded, rows, s.dscores.data(), 1, kB, s.query.data(), padded, s.dkeys.data() + key * padded, padded, true);
      gemm(rows, padded, depth, s.dscores.data(), kB, 1, s.keys.data() + key * padded, padded, s.dquery.data(), padded, true);
    }
    unpack_rows(s.dquery.data(), padded, rows, width, scale, dq.at(begin + first, head), dq.token_stride);
  }

  void document(Scratch& s, int64_t begin, int64_t length, int64_t kv_head) const {
    s.keys_t.fill(k, begin, length, kv_head, width);
    s.values_t.fill(v, begin, length, kv_head, width);
    s.keys.resize(static_cast<std::size_t>(length * padded));
    pack_rows(k.at(begin, kv_head), k.token_stride, length, width, A{1}, s.keys.data(), padded);
    s.dkeys.assign(static_cast<std::size_t>(length * padded), A{0});
    s.dvalues.assign(static_cast<std::size_t>(length * padded), A{0});
    for (std::vector<A>* block : {&s.query, &s.dout, &s.dquery}) block->resize(static_cast<std::size_t>(kAttentionBlock * padded));
    for (std::vector<A>* block : {&s.scores, &s.dscores}) block->resize(kAttentionBlock * kAttentionBlock);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (int64_t first = 0; first < length; first += kAttentionBlock)
        query_block(s, begin, first, std::min(kAttentionBlock, length - first), head);
    unpack_rows(s.dkeys.data(), padded, length, width, A{1}, dk.at(begin, kv_head), dk.token_stride);
    unpack_rows(s.dvalues.data(), padded, length, width, A{1}, dv.at(begin, kv_head), dv.token_stride);
  }
};

}  // namespace

AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                      const at::Tensor& lse, const std::vector<int64_t>& offsets, double scale) {
  const int64_t tokens = q.size(0), heads = q.size(1), kv_heads = k.size(1), width = q.size(2);
  AttentionGradients g{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()), at::empty(v.sizes(), v.options())};
  dispatch_element(q.scalar_type(), "attention", [&](auto element) {
    using T = decltype(element);
    using A = Accurate<T>;
    const Backward<T> kernel{heads_of<T>(dout), heads_of<T>(q), heads_of<T>(k), heads_of<T>(v), heads_of<T>(out), mutable_heads_of<T>(g.dq),
                             mutable_heads_of<T>(g.dk), mutable_heads_of<T>(g.dv), lse.const_data_ptr<A>(), tokens, heads / kv_heads, width,
                             pad_lanes<A>(width), static_cast<A>(scale)};
    parallel_tasks((static_cast<int64_t>(offsets.size()) - 1) * kv_heads, [&](auto&& next) {
      typename Backward<T>::Scratch scratch;
      for (int64_t task = next(); task >= 0; task = next()) {
        const auto d = static_cast<std::size_t>(task / kv_heads);
        kernel.document(scratch, offsets[d], offsets[d + 1] - offsets[d], task % kv_heads);
      }
    });
  });
  return g;
}

}  // namespace scalewright
