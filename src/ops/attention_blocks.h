// What the forward and backward kernels of attention share: heads of a tensor [T, heads, D] brought into padded blocks.
#pragma once
#include <span>
#include <vector>

#include "ops/attention_kernels.h"
#include "ops/block_gemm.h"
#include "ops/element.h"

namespace scalewright {

/// A view of [T, heads, D] with contiguous D.
template <typename T>
struct Heads {
  T* data;
  int64_t token_stride, head_stride;
  T* at(int64_t token, int64_t head) const { return data + token * token_stride + head * head_stride; }
};

template <typename T>
Heads<const T> heads_of(const at::Tensor& x) {
  return {x.const_data_ptr<T>(), x.stride(0), x.stride(1)};
}
template <typename T>
Heads<T> mutable_heads_of(const at::Tensor& x) {
  return {x.data_ptr<T>(), x.stride(0), x.stride(1)};
}

/// out[rows][padded] = factor * rows of one head, zeros after `width`.
template <typename T>
SW_VECTOR_CLONES void pack_rows(const T* from, int64_t stride, int64_t rows, int64_t width, Accurate<T> factor,
                                Accurate<T>* out, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) out[r * padded + i] = factor * load(from[r * stride + i]);
    for (int64_t i = width; i < padded; ++i) out[r * padded + i] = 0;
  }
}

/// out[width][kAttentionBlock] = rows of one head transposed, zeros after `rows` up to a whole vector.
template <typename T>
SW_VECTOR_CLONES void pack_transposed(const T* from, int64_t stride, int64_t rows, int64_t width, Accurate<T>* out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) out[i * kAttentionBlock + r] = load(from[r * stride + i]);
  for (int64_t i = 0; i < width; ++i)
    for (int64_t r = rows; r < pad_lanes<Accurate<T>>(rows); ++r) out[i * kAttentionBlock + r] = 0;
}

/// rows of one head = factors[row * factor_step] * in[rows][padded].
template <typename T>
SW_VECTOR_CLONES void unpack_rows(const Accurate<T>* in, int64_t padded, int64_t rows, int64_t width,
                                  const Accurate<T>* factors, int64_t factor_step, T* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const Accurate<T> factor = factors[r * factor_step];
    for (int64_t i = 0; i < width; ++i) to[r * stride + i] = store<T>(factor * in[r * padded + i]);
  }
}

/// The queries here of one document, and as many of its keys as they see.
struct DocumentQueries {
  int64_t begin, keys;  // in k
  std::span<const QuerySegment> segments;
};
inline std::vector<DocumentQueries> queries_by_document(const AttentionRows& rows) {
  std::vector<DocumentQueries> documents;
  const std::span<const QuerySegment> all(rows.segments);
  for (std::size_t i = 0, next = 0; i < all.size(); i = next) {
    int64_t keys = 0;
    for (; next < all.size() && all[next].document == all[i].document; ++next)
      if (all[next].length > 0) keys = std::max(keys, all[next].first_position + all[next].length);
    if (keys > 0) documents.push_back({rows.offsets[all[i].document], keys, all.subspan(i, next - i)});
  }
  return documents;
}

/// Calls f(first position, rows to skip, rows) for the blocks of a segment on the grid of its document's positions.
template <typename F>
void for_each_query_block(const QuerySegment& segment, F&& f) {
  const int64_t begin = segment.first_position, end = begin + segment.length;
  for (int64_t first = begin / kAttentionBlock * kAttentionBlock; first < end; first += kAttentionBlock)
    f(first, std::max<int64_t>(0, begin - first), std::min(kAttentionBlock, end - first));
}

/// Calls f(first row, rows, keys that they need) for the rows of a query block against one key block: at once, or on
/// the diagonal in strips, which saves most of the half that the mask would throw away.
inline constexpr int64_t kStrip = 16;
template <typename F>
void for_each_strip(int64_t rows, bool diagonal, F&& f) {
  if (!diagonal) return f(int64_t{0}, rows, kAttentionBlock);
  for (int64_t r = 0; r < rows; r += kStrip) f(r, std::min(kStrip, rows - r), std::min(rows, r + kStrip));
}

/// One head's rows begin .. begin+length-1 as key blocks, each transposed: [block][D][kAttentionBlock].
template <typename T>
struct TransposedBlocks {
  std::vector<Accurate<T>> data;
  int64_t width;
  void fill(const Heads<const T>& x, int64_t begin, int64_t length, int64_t head, int64_t head_width) {
    width = head_width;
    const int64_t blocks = (length + kAttentionBlock - 1) / kAttentionBlock;
    data.resize(static_cast<std::size_t>(blocks * width * kAttentionBlock));
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = b * kAttentionBlock, rows = std::min(kAttentionBlock, length - first);
      pack_transposed(x.at(begin + first, head), x.token_stride, rows, width, block(b));
    }
  }
  Accurate<T>* block(int64_t b) { return data.data() + b * width * kAttentionBlock; }
};

}  // namespace scalewright
