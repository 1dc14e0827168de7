#include "train/adamw_cuda.h"

#include "ops/cuda_launch.h"

namespace scalewright::cuda {
namespace {

template <class T>
__global__ void adamw_kernel(AdamWUpdate update, T* p, const T* g, T* m, T* v, int64_t count) {
  const AdamWElement<T> element(update);
  const int64_t i = thread_number();
  if (i < count) element(p[i], g[i], m[i], v[i]);
}

}  // namespace

void launch_adamw(const AdamWUpdate& update, Element element, void* p, const void* g, void* m, void* v, int64_t count, cudaStream_t stream) {
  const auto launch = [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((adamw_kernel<T>), blocks_for(count), kThreads, stream, update, static_cast<T*>(p), static_cast<const T*>(g), static_cast<T*>(m), static_cast<T*>(v),
              count);
  };
  if (element == Element::kFloat64) launch(double{});
  else launch(float{});
}

}  // namespace scalewright::cuda
