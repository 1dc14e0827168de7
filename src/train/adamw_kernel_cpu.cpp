#include "train/adamw_kernel.h"

#include "ops/element.h"

namespace scalewright {
namespace {

template <class T>
SW_VECTOR_CLONES void update_elements(const AdamWUpdate& update, T* p, const T* g, T* m, T* v, int64_t n) {
  const AdamWElement<T> element(update);
  for (int64_t i = 0; i < n; ++i) element(p[i], g[i], m[i], v[i]);
}

}  // namespace

void adamw_update_cpu(const AdamWUpdate& update, at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v) {
  const auto on = [&]<class T>(T) {
    auto *to = p.mutable_data_ptr<T>(), *first = m.mutable_data_ptr<T>(), *second = v.mutable_data_ptr<T>();
    const auto* gradient = g.const_data_ptr<T>();
    at::parallel_for(0, p.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      update_elements(update, to + begin, gradient + begin, first + begin, second + begin, end - begin);
    });
  };
  p.scalar_type() == at::kDouble ? on(double{}) : on(float{});
}

}  // namespace scalewright
