#include "ops/rows_cuda_device.h"

namespace scalewright::cuda {
namespace {

template <class T>
__global__ void swiglu_kernel(RowsView gate_up, int64_t width, T* out) {
  const Place at = place_in(width);
  if (at.column >= width) return;
  const T* const in = row_of<T>(gate_up, at.row);
  out[at.row * width + at.column] = swiglu_value(in[at.column], in[width + at.column]);
}

template <class T>
__global__ void swiglu_gradient_kernel(RowsView dy, RowsView gate_up, int64_t width, T* dx) {
  const Place at = place_in(width);
  if (at.column >= width) return;
  const T* const in = row_of<T>(gate_up, at.row);
  T* const to = dx + at.row * 2 * width;
  swiglu_gradient(row_of<T>(dy, at.row)[at.column], in[at.column], in[width + at.column], to[at.column], to[width + at.column]);
}

}  // namespace

void launch_swiglu(Element element, const RowsView& gate_up, int64_t rows, int64_t width, void* out, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((swiglu_kernel<T>), blocks_for_rows(rows, width), kThreads, stream, gate_up, width, static_cast<T*>(out));
  });
}

void launch_swiglu_gradient(Element element, const RowsView& dy, const RowsView& gate_up, int64_t rows, int64_t width, void* dx, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((swiglu_gradient_kernel<T>), blocks_for_rows(rows, width), kThreads, stream, dy, gate_up, width, static_cast<T*>(dx));
  });
}

}  // namespace scalewright::cuda
