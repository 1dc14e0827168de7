#include "ops/rows_cuda_device.h"

namespace scalewright::cuda {
namespace {

/// A thread a pair; a token's heads lie in one row of places.
template <class T>
__global__ void rotate_kernel(const T* x, int64_t token_stride, int64_t head_stride, const Accurate<T>* cos, const Accurate<T>* sin, Accurate<T> sign,
                              int64_t heads, int64_t half, T* y) {
  const Place at = place_in(heads * half);
  if (at.column >= heads * half) return;
  const int64_t head = at.column / half, i = at.column % half;
  const T* const from = x + at.row * token_stride + head * head_stride;
  T* const to = y + (at.row * heads + head) * 2 * half;
  rotate_pair(from[i], from[i + half], cos[at.row * half + i], sign * sin[at.row * half + i], to[i], to[i + half]);
}

}  // namespace

void launch_rotate_half(Element element, const void* x, int64_t token_stride, int64_t head_stride, const void* cos, const void* sin, bool inverse,
                        int64_t tokens, int64_t heads, int64_t half, void* y, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    using A = Accurate<T>;
    SW_LAUNCH((rotate_kernel<T>), blocks_for_rows(tokens, heads * half), kThreads, stream, static_cast<const T*>(x), token_stride, head_stride,
              static_cast<const A*>(cos), static_cast<const A*>(sin), inverse ? A{-1} : A{1}, heads, half, static_cast<T*>(y));
  });
}

}  // namespace scalewright::cuda
