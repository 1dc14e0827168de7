#include "ops/attention_blocks.h"
#include "ops/parallel_tasks.h"
#include "ops/vector_math.h"

namespace scalewright {
namespace {

/// One row: s (scores) becomes P = exp(s - lse), 0 from `valid` on, and dp becomes dS = P (dp - delta).
template <typename A>
SW_VECTOR_CLONES void score_gradient_row(A* s, A* dp, int valid, int columns, A lse, A delta) {
  for (int c = 0; c < columns; ++c) {
    const A p = fast_exp(s[c] - lse);
    s[c] = c < valid ? p : A{0};
    dp[c] = c < valid ? p * (dp[c] - delta) : A{0};
  }
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
    std::vector<A> keys, dkeys, dvalues;  // [length][padded]
    std::vector<A> query, dout, dquery;   // [kAttentionBlock][padded]
    std::vector<A> scores, dscores;       // [kAttentionBlock][kAttentionBlock]
  };

  /// Adds P^T dout and dS^T q of one key block; on the diagonal a strip of keys is seen by the queries from its first
  /// key on.
  void key_gradients(Scratch& s, int64_t key, int64_t rows, bool diagonal) const {
    const int64_t keys = diagonal ? rows : kAttentionBlock, strip = diagonal ? kStrip : keys;
    for (int64_t j = 0; j < keys; j += strip) {
      const int64_t count = std::min(strip, keys - j), from = diagonal ? j : 0, at = from * kAttentionBlock + j,
                    to = (key + j) * padded;
      gemm(count, padded, rows - from, s.scores.data() + at, 1, kAttentionBlock, s.dout.data() + from * padded, padded,
           s.dvalues.data() + to, padded, true);
      gemm(count, padded, rows - from, s.dscores.data() + at, 1, kAttentionBlock, s.query.data() + from * padded,
           padded, s.dkeys.data() + to, padded, true);
    }
  }

  /// As in the forward kernel: skipped rows have queries and gradients of zero and so add nothing.
  void query_block(Scratch& s, int64_t origin, int64_t first, int64_t skip, int64_t rows, int64_t head) const {
    constexpr int64_t kB = kAttentionBlock;
    const int64_t row = origin + first + skip;   // of q
    std::fill_n(s.query.begin(), skip * padded, A{0});
    std::fill_n(s.dout.begin(), skip * padded, A{0});
    pack_rows(q.at(row, head), q.token_stride, rows - skip, width, scale, s.query.data() + skip * padded, padded);
    pack_rows(dout.at(row, head), dout.token_stride, rows - skip, width, A{1}, s.dout.data() + skip * padded, padded);
    std::fill(s.dquery.begin(), s.dquery.end(), A{0});
    A delta[kB] = {}, row_lse[kB] = {};
    for (int64_t r = skip; r < rows; ++r) {
      delta[r] = row_dot(dout.at(row + r - skip, head), out.at(row + r - skip, head), width);
      row_lse[r] = lse[head * tokens + row + r - skip];
    }
    for (int64_t key = 0; key <= first; key += kB) {
      const bool diagonal = key == first;
      for_each_strip(rows, diagonal, [&](int64_t r0, int64_t count, int64_t depth) {
        const int64_t columns = pad_lanes<A>(depth);
        A *scores = s.scores.data() + r0 * kB, *dscores = s.dscores.data() + r0 * kB;
        gemm(count, columns, width, s.query.data() + r0 * padded, padded, 1, s.keys_t.block(key / kB), kB, scores, kB,
             false);
        gemm(count, columns, width, s.dout.data() + r0 * padded, padded, 1, s.values_t.block(key / kB), kB, dscores, kB,
             false);
        for (int64_t r = r0; r < r0 + count; ++r)
          score_gradient_row(s.scores.data() + r * kB, s.dscores.data() + r * kB,
                             static_cast<int>(diagonal ? r + 1 : depth), static_cast<int>(columns), row_lse[r],
                             delta[r]);
        gemm(count, padded, depth, dscores, kB, 1, s.keys.data() + key * padded, padded, s.dquery.data() + r0 * padded,
             padded, true);
      });
      key_gradients(s, key, rows, diagonal);
    }
    unpack_rows(s.dquery.data() + skip * padded, padded, rows - skip, width, &scale, 0, dq.at(row, head), dq.token_stride);
  }

  void document(Scratch& s, int64_t begin, int64_t length, std::span<const QuerySegment> segments, int64_t kv_head) const {
    s.keys_t.fill(k, begin, length, kv_head, width);
    s.values_t.fill(v, begin, length, kv_head, width);
    s.keys.resize(static_cast<std::size_t>(length * padded));
    pack_rows(k.at(begin, kv_head), k.token_stride, length, width, A{1}, s.keys.data(), padded);
    s.dkeys.assign(static_cast<std::size_t>(length * padded), A{0});
    s.dvalues.assign(static_cast<std::size_t>(length * padded), A{0});
    for (std::vector<A>* block : {&s.query, &s.dout, &s.dquery})
      block->resize(static_cast<std::size_t>(kAttentionBlock * padded));
    for (std::vector<A>* block : {&s.scores, &s.dscores}) block->resize(kAttentionBlock * kAttentionBlock);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (const QuerySegment& segment : segments)
        for_each_query_block(segment, [&](int64_t first, int64_t skip, int64_t rows) {
          query_block(s, segment.first_row - segment.first_position, first, skip, rows, head);
        });
    const A one = 1;
    unpack_rows(s.dkeys.data(), padded, length, width, &one, 0, dk.at(begin, kv_head), dk.token_stride);
    unpack_rows(s.dvalues.data(), padded, length, width, &one, 0, dv.at(begin, kv_head), dv.token_stride);
  }
};

}  // namespace

AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                      const AttentionRows& rows, double scale) {
  const int64_t tokens = q.size(0), heads = q.size(1), kv_heads = k.size(1), width = q.size(2);
  // Keys of documents without a query here, or after the last one, have no gradient from here.
  AttentionGradients g{at::empty(q.sizes(), q.options()), at::zeros(k.sizes(), k.options()),
                       at::zeros(v.sizes(), v.options())};
  dispatch_element(q.scalar_type(), "attention", [&](auto element) {
    using T = decltype(element);
    using A = Accurate<T>;
    const Backward<T> kernel{heads_of<T>(dout),
                             heads_of<T>(q),
                             heads_of<T>(k),
                             heads_of<T>(v),
                             heads_of<T>(out),
                             mutable_heads_of<T>(g.dq),
                             mutable_heads_of<T>(g.dk),
                             mutable_heads_of<T>(g.dv),
                             lse.const_data_ptr<A>(),
                             tokens,
                             heads / kv_heads,
                             width,
                             pad_lanes<A>(width),
                             static_cast<A>(scale)};
    const std::vector<DocumentQueries> documents = queries_by_document(rows);
    parallel_tasks(static_cast<int64_t>(documents.size()) * kv_heads, [&](auto&& next) {
      typename Backward<T>::Scratch scratch;
      for (int64_t task = next(); task >= 0; task = next()) {
        const DocumentQueries& d = documents[static_cast<std::size_t>(task / kv_heads)];
        kernel.document(scratch, d.begin, d.keys, d.segments, task % kv_heads);
      }
    });
  });
  return g;
}

}  // namespace scalewright
