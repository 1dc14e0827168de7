#include "ops/cuda_build.h"
#include "ops/element.h"
#include "ops/rope_kernels.h"
#include "ops/row_math.h"
#include "ops/tensors_cuda.h"

namespace scalewright {
namespace {

template <typename T>
SW_VECTOR_CLONES void rotate(const T* x, const Accurate<T>* cos, const Accurate<T>* sin, Accurate<T> sign, T* y,
                             int64_t half) {
  for (int64_t i = 0; i < half; ++i) rotate_pair(x[i], x[i + half], cos[i], sign * sin[i], y[i], y[i + half]);
}

}  // namespace

at::Tensor rotate_half(const at::Tensor& x_THD, const at::Tensor& cos, const at::Tensor& sin, bool inverse) {
  if constexpr (kCudaBuild)
    if (x_THD.is_cuda()) return cuda::rotate_half(x_THD, cos, sin, inverse);
  const at::Tensor x = x_THD.stride(2) == 1 ? x_THD : x_THD.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  const int64_t tokens = x.size(0), heads = x.size(1), width = x.size(2), half = width / 2;
  const at::Tensor c = cos.contiguous(), s = sin.contiguous();
  dispatch_element(x.scalar_type(), "rope", [&](auto element) {
    using T = decltype(element);
    using A = Accurate<T>;
    const T* from = x.const_data_ptr<T>();
    const A *cos_data = c.const_data_ptr<A>(), *sin_data = s.const_data_ptr<A>();
    T* to = y.data_ptr<T>();
    at::parallel_for(0, tokens, row_grain(heads * width), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t h = 0; h < heads; ++h)
          rotate<T>(from + t * x.stride(0) + h * x.stride(1), cos_data + t * half, sin_data + t * half,
                    inverse ? A{-1} : A{1}, to + (t * heads + h) * width, half);
    });
  });
  return y;
}

}  // namespace scalewright
