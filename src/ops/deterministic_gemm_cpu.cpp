#include "ops/deterministic_gemm.h"

#include "ops/block_gemm.h"
#include "ops/element.h"
#include "ops/gemm.h"

namespace scalewright {
namespace {

// A tile of the result is summed up in the second-level cache; its size is a matter of speed only.
constexpr int64_t kTileM = 192, kTileN = 128;
// Rows lie 9 (float64: 18) cache lines apart; a power of two would put them all into a few sets of the cache.
constexpr int64_t kRowB = kTileN + 16;

template <typename T>
struct Matrix {
  const T* data;
  int64_t rows, columns, row_stride, column_stride;
  explicit Matrix(const at::Tensor& t)
      : data(t.const_data_ptr<T>()),
        rows(t.size(0)),
        columns(t.size(1)),
        row_stride(t.stride(0)),
        column_stride(t.stride(1)) {}
};

/// out[r][c] = from[c * stride + r]: squares that fit into registers and first-level cache, since the columns lie far
/// apart.
template <typename T>
SW_VECTOR_CLONES void pack_transposed(const T* from, int64_t stride, int64_t rows, int64_t columns, Accurate<T>* out,
                                      int64_t out_row) {
  constexpr int64_t kSide = 16;
  Accurate<T> square[kSide][kSide];
  for (int64_t c0 = 0; c0 < columns; c0 += kSide)
    for (int64_t r0 = 0; r0 < rows; r0 += kSide) {
      const int64_t width = std::min(kSide, columns - c0), height = std::min(kSide, rows - r0);
      for (int64_t c = 0; c < width; ++c) {
        const T* column = from + (c0 + c) * stride + r0;
        if (height == kSide)
          for (int64_t r = 0; r < kSide; ++r) square[c][r] = load(column[r]);
        else
          for (int64_t r = 0; r < height; ++r) square[c][r] = load(column[r]);
      }
      for (int64_t r = 0; r < height; ++r) {
        Accurate<T>* row = out + (r0 + r) * out_row + c0;
        if (width == kSide)
          for (int64_t c = 0; c < kSide; ++c) row[c] = square[c][r];
        else
          for (int64_t c = 0; c < width; ++c) row[c] = square[c][r];
      }
    }
}

template <typename T>
SW_VECTOR_CLONES void pack_plain(const T* from, int64_t row_stride, int64_t column_stride, int64_t rows,
                                 int64_t columns, Accurate<T>* out, int64_t out_row) {
  if (column_stride == 1) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out[r * out_row + c] = load(from[r * row_stride + c]);
  } else {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out[r * out_row + c] = load(from[r * row_stride + c * column_stride]);
  }
}

/// Copies rows x columns from (row, column) on to out[rows][out_row] in the accurate type; columns up to `padded`
/// become 0.
template <typename T>
void pack(const Matrix<T>& m, int64_t row, int64_t rows, int64_t column, int64_t columns, Accurate<T>* out,
          int64_t out_row, int64_t padded) {
  const T* from = m.data + row * m.row_stride + column * m.column_stride;
  if (m.row_stride == 1 && m.column_stride != 1)
    pack_transposed(from, m.column_stride, rows, columns, out, out_row);
  else
    pack_plain(from, m.row_stride, m.column_stride, rows, columns, out, out_row);
  for (int64_t r = 0; r < rows; ++r) std::fill(out + r * out_row + columns, out + r * out_row + padded, Accurate<T>{0});
}

template <typename T>
SW_VECTOR_CLONES void write_tile(const Accurate<T>* tile, int64_t rows, int64_t columns, T* out, int64_t out_row) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[r * out_row + c] = store<T>(tile[r * kRowB + c]);
}

/// Columns of a tile: fewer when there would not be a few tiles for each thread.
int64_t tile_columns(int64_t tiles_m, int64_t columns) {
  const int64_t wanted = at::in_parallel_region() ? 1 : 3 * at::get_num_threads();
  int64_t tile = kTileN;
  while (tile > 32 && tiles_m * ((columns + tile - 1) / tile) < wanted) tile /= 2;
  return tile;
}

template <typename T>
void product(const Matrix<T>& a, const Matrix<T>& b, T* out, int64_t out_row) {
  using A = Accurate<T>;
  const BlockGemm<A> kernel = block_kernels().front().of<A>();
  const int64_t tiles_m = (a.rows + kTileM - 1) / kTileM, tile_n = tile_columns(tiles_m, b.columns),
                tiles_n = (b.columns + tile_n - 1) / tile_n;
  at::parallel_for(0, tiles_m * tiles_n, 1, [&](int64_t begin, int64_t end) {
    std::vector<A> tile(kTileM * kRowB), block_a(kTileM * kDeterministicBlockK), block_b(kDeterministicBlockK * kRowB);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t m0 = t % tiles_m * kTileM, n0 = t / tiles_m * tile_n;
      const int64_t rows = std::min(kTileM, a.rows - m0), columns = std::min(tile_n, b.columns - n0),
                    padded = pad_lanes<A>(columns);
      std::fill(tile.begin(), tile.end(), A{0});
      for (int64_t k0 = 0; k0 < a.columns; k0 += kDeterministicBlockK) {
        const int64_t depth = std::min(kDeterministicBlockK, a.columns - k0);
        pack(a, m0, rows, k0, depth, block_a.data(), kDeterministicBlockK, depth);
        pack(b, k0, depth, n0, columns, block_b.data(), kRowB, padded);
        kernel(rows, padded, depth, block_a.data(), kDeterministicBlockK, 1, block_b.data(), kRowB, tile.data(), kRowB,
               true);
      }
      write_tile(tile.data(), rows, columns, out + m0 * out_row + n0, out_row);
    }
  });
}

}  // namespace

void deterministic_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  if (out.numel() == 0) return;
  dispatch_element(a.scalar_type(), "matmul", [&](auto element) {
    using T = decltype(element);
    product(Matrix<T>(a), Matrix<T>(b), out.data_ptr<T>(), out.stride(0));
  });
}

}  // namespace scalewright
