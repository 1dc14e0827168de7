#include "ops/rows_cuda_device.h"

namespace scalewright::cuda {
namespace {

/// Sixteen lanes a row.
template <class T>
__global__ void rms_norm_kernel(RowsView x, const T* weight, Accurate<T> eps, int64_t rows, int64_t width, T* y, Accurate<T>* rstd) {
  using A = Accurate<T>;
  const int64_t row = thread_number() / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const T* const in = row < rows ? row_of<T>(x, row) : nullptr;
  A squares = 0;
  for (int64_t i = lane; in && i < width; i += kLanes) squares += load(in[i]) * load(in[i]);
  squares = add_row_lanes(squares);
  if (!in) return;
  const A r = reciprocal_rms(squares, static_cast<A>(width), eps);
  if (lane == 0) rstd[row] = r;
  for (int64_t i = lane; i < width; i += kLanes) y[row * width + i] = store<T>(load(weight[i]) * normalized(in[i], r));
}

template <class T>
__global__ void input_gradient_kernel(RowsView dy, RowsView x, const T* weight, const Accurate<T>* rstd, int64_t rows, int64_t width, T* dx) {
  using A = Accurate<T>;
  const int64_t row = thread_number() / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const T *in = nullptr, *d = nullptr;
  if (row < rows) {
    in = row_of<T>(x, row);
    d = row_of<T>(dy, row);
  }
  A dot = 0;
  for (int64_t i = lane; in && i < width; i += kLanes) dot += load(d[i]) * load(weight[i]) * load(in[i]);
  dot = add_row_lanes(dot);
  if (!in) return;
  const A along = gradient_along(dot, rstd[row], static_cast<A>(width));
  for (int64_t i = lane; i < width; i += kLanes) dx[row * width + i] = norm_gradient(d[i], in[i], weight[i], rstd[row], along);
}

/// A thread a column of a chunk of rows.
template <class T>
__global__ void weight_gradient_kernel(RowsView dy, RowsView x, const Accurate<T>* rstd, int64_t rows, int64_t width, Accurate<T>* partial) {
  const Place at = place_in(width);   // row: the chunk
  if (at.column >= width) return;
  const int64_t begin = at.row * kNormChunkRows, end = begin + kNormChunkRows < rows ? begin + kNormChunkRows : rows;
  Accurate<T> sum = 0;
  for (int64_t r = begin; r < end; ++r) sum += load(row_of<T>(dy, r)[at.column]) * normalized(row_of<T>(x, r)[at.column], rstd[r]);
  partial[at.row * width + at.column] = sum;
}

template <class A>
__global__ void add_chunks_kernel(A* partial, int64_t chunks, int64_t width) {
  const int64_t column = thread_number();
  if (column >= width) return;
  A sum = partial[column];
  for (int64_t c = 1; c < chunks; ++c) sum += partial[c * width + column];
  partial[column] = sum;
}

}  // namespace

void launch_rms_norm(Element element, const RowsView& x, const void* weight, double eps, int64_t rows, int64_t width, void* y, void* rstd,
                     cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    using A = Accurate<T>;
    SW_LAUNCH((rms_norm_kernel<T>), blocks_for(rows * kLanes), kThreads, stream, x, static_cast<const T*>(weight), static_cast<A>(eps), rows, width,
              static_cast<T*>(y), static_cast<A*>(rstd));
  });
}

void launch_rms_norm_input_gradient(Element element, const RowsView& dy, const RowsView& x, const void* weight, const void* rstd, int64_t rows,
                                    int64_t width, void* dx, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((input_gradient_kernel<T>), blocks_for(rows * kLanes), kThreads, stream, dy, x, static_cast<const T*>(weight),
              static_cast<const Accurate<T>*>(rstd), rows, width, static_cast<T*>(dx));
  });
}

void launch_rms_norm_weight_gradient(Element element, const RowsView& dy, const RowsView& x, const void* rstd, int64_t rows, int64_t width, void* partial,
                                     cudaStream_t stream) {
  const int64_t chunks = (rows + kNormChunkRows - 1) / kNormChunkRows;
  with_element(element, [&](auto type) {
    using T = decltype(type);
    using A = Accurate<T>;
    SW_LAUNCH((weight_gradient_kernel<T>), blocks_for_rows(chunks, width), kThreads, stream, dy, x, static_cast<const A*>(rstd), rows, width,
              static_cast<A*>(partial));
    SW_LAUNCH((add_chunks_kernel<A>), blocks_for(width), kThreads, stream, static_cast<A*>(partial), chunks, width);
  });
}

}  // namespace scalewright::cuda
