#include "ops/cuda_build.h"
#include "ops/element.h"
#include "ops/norm_kernels.h"
#include "ops/row_math.h"
#include "ops/tensors_cuda.h"

namespace scalewright {
namespace {

constexpr int64_t kChunkRows = 64;  // of the sum for dweight; fixed, so that threads do not change it

template <typename T>
SW_VECTOR_CLONES void normalize(const T* x, const T* w, T* y, int64_t width, Accurate<T> eps, Accurate<T>* rstd) {
  using A = Accurate<T>;
  const A squares = lane_sum<A>(width, [&](int64_t i) { return load(x[i]) * load(x[i]); });
  const A r = reciprocal_rms(squares, static_cast<A>(width), eps);
  *rstd = r;
  for (int64_t i = 0; i < width; ++i) y[i] = store<T>(load(w[i]) * normalized(x[i], r));
}

template <typename T>
SW_VECTOR_CLONES void input_gradient(const T* dy, const T* x, const T* w, Accurate<T> rstd, T* dx, int64_t width) {
  using A = Accurate<T>;
  const A dot = lane_sum<A>(width, [&](int64_t i) { return load(dy[i]) * load(w[i]) * load(x[i]); });
  const A along = gradient_along(dot, rstd, static_cast<A>(width));
  for (int64_t i = 0; i < width; ++i) dx[i] = norm_gradient(dy[i], x[i], w[i], rstd, along);
}

template <typename T>
SW_VECTOR_CLONES void add_weight_gradient(const T* dy, const T* x, Accurate<T> rstd, Accurate<T>* sum, int64_t width) {
  for (int64_t i = 0; i < width; ++i) sum[i] += load(dy[i]) * normalized(x[i], rstd);
}

at::ScalarType accurate_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

template <typename T>
at::Tensor weight_gradient(const Rows& dy, const Rows& x, const Accurate<T>* rstd, const at::Tensor& weight) {
  using A = Accurate<T>;
  const int64_t width = x.width, chunks = (x.count + kChunkRows - 1) / kChunkRows;
  const at::Tensor partial = at::zeros({chunks, width}, weight.options().dtype(accurate_type(weight)));
  A* sums = partial.data_ptr<A>();
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      for (int64_t r = c * kChunkRows; r < std::min(x.count, (c + 1) * kChunkRows); ++r)
        add_weight_gradient(dy.row<T>(r), x.row<T>(r), rstd[r], sums + c * width, width);
  });
  for (int64_t c = 1; c < chunks; ++c)
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[c * width + i];
  return chunks == 0 ? at::zeros_like(weight) : partial[0].to(weight.scalar_type());
}

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if constexpr (kCudaBuild)
    if (x.is_cuda()) return cuda::rms_norm_forward(x, weight, eps);
  const Rows rows(x);
  const at::Tensor w = weight.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor rstd = at::empty({rows.count}, x.options().dtype(accurate_type(x)));
  dispatch_element(x.scalar_type(), "rms_norm", [&](auto element) {
    using T = decltype(element);
    using A = Accurate<T>;
    const T* w_data = w.const_data_ptr<T>();
    T* y_data = y.data_ptr<T>();
    A* rstd_data = rstd.data_ptr<A>();
    at::parallel_for(0, rows.count, row_grain(rows.width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        normalize(rows.row<T>(r), w_data, y_data + r * rows.width, rows.width, static_cast<A>(eps), rstd_data + r);
    });
  });
  return {y, rstd};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& rstd, bool want_dx, bool want_dweight) {
  if constexpr (kCudaBuild)
    if (x.is_cuda()) return cuda::rms_norm_backward(dy, x, weight, rstd, want_dx, want_dweight);
  const Rows rows(x), dy_rows(dy);
  const at::Tensor w = weight.contiguous();
  at::Tensor dx, dweight;
  dispatch_element(x.scalar_type(), "rms_norm", [&](auto element) {
    using T = decltype(element);
    using A = Accurate<T>;
    const A* r_data = rstd.const_data_ptr<A>();
    if (want_dx) {
      dx = at::empty(x.sizes(), x.options());
      T* dx_data = dx.data_ptr<T>();
      const T* w_data = w.const_data_ptr<T>();
      at::parallel_for(0, rows.count, row_grain(rows.width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          input_gradient(dy_rows.row<T>(r), rows.row<T>(r), w_data, r_data[r], dx_data + r * rows.width, rows.width);
      });
    }
    if (want_dweight) dweight = weight_gradient<T>(dy_rows, rows, r_data, w);
  });
  return {dx, dweight};
}

}  // namespace scalewright
