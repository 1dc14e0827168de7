#include "ops/attention_blocks.h"
#include "ops/parallel_tasks.h"
#include "ops/vector_math.h"

namespace scalewright {
namespace {

template <typename T>
SW_VECTOR_CLONES Accurate<T> score(const Accurate<T>* q, const T* k, int64_t width) {
  return lane_sum<Accurate<T>>(width, [&](int64_t i) { return q[i] * load(k[i]); });
}

template <typename A>
SW_VECTOR_CLONES A exponentials(A* s, int64_t count) {
  A top = s[0];
  for (int64_t i = 1; i < count; ++i) top = s[i] > top ? s[i] : top;
  for (int64_t i = 0; i < count; ++i) s[i] = fast_exp(s[i] - top);
  return lane_sum<A>(count, [&](int64_t i) { return s[i]; });
}

template <typename T>
SW_VECTOR_CLONES void add_value(const T* v, Accurate<T> weight, Accurate<T>* sum, int64_t width) {
  for (int64_t i = 0; i < width; ++i) sum[i] += weight * load(v[i]);
}

/// One (sequence, query head): q [D] against `length` keys and values that lie `stride` apart.
template <typename T>
void step_head(const T* q, const T* k, const T* v, int64_t k_stride, int64_t v_stride, int64_t length, int64_t width,
               Accurate<T> scale, std::vector<Accurate<T>>& scratch, T* out) {
  using A = Accurate<T>;
  scratch.assign(static_cast<std::size_t>(2 * width + length), A{0});
  A *query = scratch.data(), *sum = query + width, *scores = sum + width;
  pack_rows(q, width, 1, width, scale, query, width);
  for (int64_t i = 0; i < length; ++i) scores[i] = score(query, k + i * k_stride, width);
  const A total = exponentials(scores, length);
  for (int64_t i = 0; i < length; ++i) add_value(v + i * v_stride, scores[i], sum, width);
  const A factor = A{1} / total;
  unpack_rows(sum, width, 1, width, &factor, 0, out, width);
}

}  // namespace

at::Tensor attention_step_kernel(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                                 const std::vector<int64_t>& lengths, double scale) {
  const int64_t heads = q.size(1), group = heads / k_cache.size(2), width = q.size(2);
  at::Tensor out = at::empty(q.sizes(), q.options());
  dispatch_element(q.scalar_type(), "attention_step", [&](auto element) {
    using T = decltype(element);
    const T *q_data = q.const_data_ptr<T>(), *k_data = k_cache.const_data_ptr<T>(),
            *v_data = v_cache.const_data_ptr<T>();
    T* out_data = out.data_ptr<T>();
    parallel_tasks(q.size(0) * heads, [&](auto&& next) {
      std::vector<Accurate<T>> scratch;
      for (int64_t task = next(); task >= 0; task = next()) {
        const int64_t b = task / heads, h = task % heads;
        step_head(q_data + b * q.stride(0) + h * q.stride(1),
                  k_data + b * k_cache.stride(0) + h / group * k_cache.stride(2),
                  v_data + b * v_cache.stride(0) + h / group * v_cache.stride(2), k_cache.stride(1), v_cache.stride(1),
                  lengths[static_cast<std::size_t>(b)], width, static_cast<Accurate<T>>(scale), scratch,
                  out_data + (b * heads + h) * width);
      }
    });
  });
  return out;
}

}  // namespace scalewright
