#include "ops/deterministic_gemm.h"

#include "ops/block_gemm.h"
#include "ops/element.h"
#include "ops/gemm.h"

namespace scalewright {
namespace {

// A tile of the result is summed up in cache; its size is a matter of speed only.
constexpr int64_t kTileM = 96, kTileN = 128;

template <typename T>
struct Matrix {
  const T* data;
  int64_t rows, columns, row_stride, column_stride;
  explicit Matrix(const at::Tensor& t)
      : data(t.const_data_ptr<T>()), rows(t.size(0)), columns(t.size(1)), row_stride(t.stride(0)), column_stride(t.stride(1)) {}
};

/// Copies rows x columns from (row, column) on to out[rows][out_row] in the accurate type; columns up to `padded` become 0.
template <typename T>
SW_VECTOR_CLONES void pack(const Matrix<T>& m, int64_t row, int64_t rows, int64_t column, int64_t columns, Accurate<T>* out, int64_t out_row,
                           int64_t padded) {
  const T* from = m.data + row * m.row_stride + column * m.column_stride;
  if (m.column_stride == 1) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out[r * out_row + c] = load(from[r * m.row_stride + c]);
  } else {  // down the columns: contiguous when the matrix is a transposed view
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < rows; ++r) out[r * out_row + c] = load(from[c * m.column_stride + r * m.row_stride]);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = columns; c < padded; ++c) out[r * out_row + c] = 0;
}

template <typename T>
SW_VECTOR_CLONES void write_tile(const Accurate<T>* tile, int64_t rows, int64_t columns, T* out, int64_t out_row) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[r * out_row + c] = store<T>(tile[r * kTileN + c]);
}

template <typename T>
void product(const Matrix<T>& a, const Matrix<T>& b, T* out) {
  using A = Accurate<T>;
  const BlockGemm<A> kernel = block_kernels().front().of<A>();
  const int64_t tiles_m = (a.rows + kTileM - 1) / kTileM, tiles_n = (b.columns + kTileN - 1) / kTileN;
  at::parallel_for(0, tiles_m * tiles_n, 1, [&](int64_t begin, int64_t end) {
    std::vector<A> tile(kTileM * kTileN), block_a(kTileM * kDeterministicBlockK), block_b(kDeterministicBlockK * kTileN);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t m0 = t % tiles_m * kTileM, n0 = t / tiles_m * kTileN;
      const int64_t rows = std::min(kTileM, a.rows - m0), columns = std::min(kTileN, b.columns - n0), padded = pad_lanes<A>(columns);
      std::fill(tile.begin(), tile.end(), A{0});
      for (int64_t k0 = 0; k0 < a.columns; k0 += kDeterministicBlockK) {
        const int64_t depth = std::min(kDeterministicBlockK, a.columns - k0);
        pack(a, m0, rows, k0, depth, block_a.data(), kDeterministicBlockK, depth);
        pack(b, k0, depth, n0, columns, block_b.data(), kTileN, padded);
        kernel(rows, padded, depth, block_a.data(), kDeterministicBlockK, 1, block_b.data(), kTileN, tile.data(), kTileN, true);
      }
      write_tile(tile.data(), rows, columns, out + m0 * b.columns + n0, b.columns);
    }
  });
}

}  // namespace

at::Tensor deterministic_gemm(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  if (out.numel() == 0) return out;
  dispatch_element(a.scalar_type(), "matmul", [&](auto element) {
    using T = decltype(element);
    product(Matrix<T>(a), Matrix<T>(b), out.data_ptr<T>());
  });
  return out;
}

}  // namespace scalewright
