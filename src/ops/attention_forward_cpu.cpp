#include "ops/attention_blocks.h"
#include "ops/parallel_tasks.h"
#include "ops/vector_math.h"

namespace scalewright {
namespace {

/// One row of scores: takes the first `valid` of `columns` into the running softmax. `s` becomes the exponentials (0
/// after `valid`), the row `out` of the output so far is rescaled to the new maximum.
template <typename A>
SW_VECTOR_CLONES void softmax_row(A* s, int valid, int columns, A* out, int64_t width, A& top, A& total) {
  constexpr int kWidth = kBlockLanes<A>;
  if (valid < columns)
    for (int c = 0; c < columns; ++c) s[c] = c < valid ? s[c] : -std::numeric_limits<A>::infinity();
  A lanes[kWidth];
  for (A& lane : lanes) lane = top;
  for (int c = 0; c < columns; c += kWidth)
    for (int j = 0; j < kWidth; ++j) lanes[j] = s[c + j] > lanes[j] ? s[c + j] : lanes[j];
  const A high = max_lanes(lanes);
  for (int c = 0; c < columns; ++c) s[c] = fast_exp(s[c] - high);
  const A sum = lane_sum<A>(columns, [&](int64_t c) { return s[c]; });
  if (high > top && total > 0) {
    const A shrink = fast_exp(top - high);
    total *= shrink;
    for (int64_t c = 0; c < width; ++c) out[c] *= shrink;
  }
  top = high;
  total += sum;
}

template <typename T>
struct Forward {
  using A = Accurate<T>;
  Heads<const T> q, k, v;
  Heads<T> out;
  A* lse;
  int64_t tokens, group, width, padded;
  A scale;
  BlockGemm<A> gemm = block_kernels().front().of<A>();

  struct Scratch {
    TransposedBlocks<T> keys;
    std::vector<A> values, query, scores, sums;
  };

  /// Queries at positions first+skip .. first+rows-1 of a document, one query head; position 0 would be row `origin` of q. Keys and
  /// values are packed in `s`. The block starts on the keys' grid, with zeros for the skipped rows, so that a row's sums do not depend
  /// on where its segment begins.
  void query_block(Scratch& s, int64_t origin, int64_t first, int64_t skip, int64_t rows, int64_t head) const {
    A top[kAttentionBlock], total[kAttentionBlock];
    std::fill_n(top, rows, -std::numeric_limits<A>::infinity());
    std::fill_n(total, rows, A{0});
    std::fill_n(s.sums.begin(), rows * padded, A{0});
    std::fill_n(s.query.begin(), skip * padded, A{0});
    pack_rows(q.at(origin + first + skip, head), q.token_stride, rows - skip, width, scale, s.query.data() + skip * padded, padded);
    for (int64_t key = 0; key <= first; key += kAttentionBlock) {
      const bool diagonal = key == first;
      for_each_strip(rows, diagonal, [&](int64_t r0, int64_t count, int64_t depth) {
        const int64_t columns = pad_lanes<A>(depth);
        A* scores = s.scores.data() + r0 * kAttentionBlock;
        gemm(count, columns, width, s.query.data() + r0 * padded, padded, 1, s.keys.block(key / kAttentionBlock),
             kAttentionBlock, scores, kAttentionBlock, false);
        for (int64_t r = r0; r < r0 + count; ++r)
          softmax_row(s.scores.data() + r * kAttentionBlock, static_cast<int>(diagonal ? r + 1 : depth),
                      static_cast<int>(columns), s.sums.data() + r * padded, padded, top[r], total[r]);
        gemm(count, padded, depth, scores, kAttentionBlock, 1, s.values.data() + key * padded, padded,
             s.sums.data() + r0 * padded, padded, true);
      });
    }
    for (int64_t r = skip; r < rows; ++r) lse[head * tokens + origin + first + r] = top[r] + std::log(total[r]);
    for (int64_t r = skip; r < rows; ++r) total[r] = A{1} / total[r];
    unpack_rows(s.sums.data() + skip * padded, padded, rows - skip, width, total + skip, 1, out.at(origin + first + skip, head), out.token_stride);
  }

  void document(Scratch& s, int64_t begin, int64_t length, std::span<const QuerySegment> segments, int64_t kv_head) const {
    s.keys.fill(k, begin, length, kv_head, width);
    s.values.resize(static_cast<std::size_t>(length * padded));
    pack_rows(v.at(begin, kv_head), v.token_stride, length, width, A{1}, s.values.data(), padded);
    for (std::vector<A>* block : {&s.query, &s.sums}) block->resize(static_cast<std::size_t>(kAttentionBlock * padded));
    s.scores.resize(kAttentionBlock * kAttentionBlock);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (const QuerySegment& segment : segments)
        for_each_query_block(segment, [&](int64_t first, int64_t skip, int64_t rows) {
          query_block(s, segment.first_row - segment.first_position, first, skip, rows, head);
        });
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const AttentionRows& rows, double scale) {
  const int64_t tokens = q.size(0), heads = q.size(1), kv_heads = k.size(1), width = q.size(2);
  at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor lse =
      at::empty({heads, tokens}, q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  dispatch_element(q.scalar_type(), "attention", [&](auto element) {
    using T = decltype(element);
    using A = Accurate<T>;
    const Forward<T> kernel{
        heads_of<T>(q), heads_of<T>(k),   heads_of<T>(v), mutable_heads_of<T>(out), lse.data_ptr<A>(),
        tokens,         heads / kv_heads, width,          pad_lanes<A>(width),      static_cast<A>(scale)};
    const std::vector<DocumentQueries> documents = queries_by_document(rows);
    parallel_tasks(static_cast<int64_t>(documents.size()) * kv_heads, [&](auto&& next) {
      typename Forward<T>::Scratch scratch;
      for (int64_t task = next(); task >= 0; task = next()) {
        const DocumentQueries& d = documents[static_cast<std::size_t>(task / kv_heads)];
        kernel.document(scratch, d.begin, d.keys, d.segments, task % kv_heads);
      }
    });
  });
  return {out, lse};
}

}  // namespace scalewright
