#include "ops/cuda_build.h"
#include "ops/element.h"
#include "ops/permute_kernels.h"
#include "ops/tensors_cuda.h"
#include "ops/vector_math.h"

namespace scalewright {
namespace {

template <typename T>
SW_VECTOR_CLONES void add_scaled(const T* y, Accurate<T> weight, Accurate<T>* sum, int64_t width) {
  for (int64_t i = 0; i < width; ++i) sum[i] += weight * load(y[i]);
}

template <typename T>
SW_VECTOR_CLONES void add_plain(const T* y, Accurate<T>* sum, int64_t width) {
  for (int64_t i = 0; i < width; ++i) sum[i] += load(y[i]);
}

template <typename T>
SW_VECTOR_CLONES void write_row(const Accurate<T>* sum, T* out, int64_t width) {
  for (int64_t i = 0; i < width; ++i) out[i] = store<T>(sum[i]);
}

template <typename T>
SW_VECTOR_CLONES void write_scaled(const T* y, Accurate<T> weight, T* out, int64_t width) {
  for (int64_t i = 0; i < width; ++i) out[i] = store<T>(weight * load(y[i]));
}

template <typename T>
SW_VECTOR_CLONES Accurate<T> dot(const T* a, const T* b, int64_t width) {
  return lane_sum<Accurate<T>>(width, [&](int64_t i) { return load(a[i]) * load(b[i]); });
}

/// The routing weights in the accurate type of `like`, contiguous.
at::Tensor accurate_weights(const at::Tensor& weight, const at::Tensor& like) {
  return weight.to(like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
}

}  // namespace

at::Tensor copy_rows(const at::Tensor& x, const at::Tensor& token) {
  if constexpr (kCudaBuild)
    if (x.is_cuda()) return cuda::copy_rows(x, token);
  const Rows from(x);
  const int64_t count = token.numel(), width = from.width;
  at::Tensor out = at::empty({count, width}, x.options());
  const int64_t* source = token.const_data_ptr<int64_t>();
  dispatch_element(x.scalar_type(), "gather_tokens", [&](auto element) {
    using T = decltype(element);
    T* to = out.data_ptr<T>();
    at::parallel_for(0, count, row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::memcpy(to + r * width, from.row<T>(source[r]), static_cast<std::size_t>(width) * sizeof(T));
    });
  });
  return out;
}

at::Tensor sum_choices(const at::Tensor& y, const at::Tensor& weight_Tk, const at::Tensor& inverse, int64_t tokens) {
  if constexpr (kCudaBuild)
    if (y.is_cuda()) return cuda::sum_choices(y, weight_Tk, inverse, tokens);
  const Rows from(y);
  const int64_t width = from.width, choices = tokens == 0 ? 0 : inverse.numel() / tokens;
  at::Tensor out = at::empty({tokens, width}, y.options());
  const at::Tensor weights = weight_Tk.defined() ? accurate_weights(weight_Tk, y) : at::Tensor();
  const int64_t* rows = inverse.const_data_ptr<int64_t>();
  dispatch_element(y.scalar_type(), "combine_tokens", [&](auto element) {
    using T = decltype(element);
    using A = Accurate<T>;
    const A* weight = weights.defined() ? weights.const_data_ptr<A>() : nullptr;
    T* to = out.data_ptr<T>();
    at::parallel_for(0, tokens, row_grain(width * choices), [&](int64_t begin, int64_t end) {
      std::vector<A> sum(static_cast<std::size_t>(width));
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sum.begin(), sum.end(), A{0});
        for (int64_t s = t * choices; s < (t + 1) * choices; ++s) {
          if (weight)
            add_scaled(from.row<T>(rows[s]), weight[s], sum.data(), width);
          else
            add_plain(from.row<T>(rows[s]), sum.data(), width);
        }
        write_row(sum.data(), to + t * width, width);
      }
    });
  });
  return out;
}

at::Tensor scale_rows(const at::Tensor& dout, const at::Tensor& weight_Tk, const at::Tensor& token,
                      const at::Tensor& slot) {
  if constexpr (kCudaBuild)
    if (dout.is_cuda()) return cuda::scale_rows(dout, weight_Tk, token, slot);
  const Rows from(dout);
  const int64_t count = token.numel(), width = from.width;
  at::Tensor dy = at::empty({count, width}, dout.options());
  const at::Tensor weights = accurate_weights(weight_Tk, dout);
  const int64_t *source = token.const_data_ptr<int64_t>(), *slots = slot.const_data_ptr<int64_t>();
  dispatch_element(dout.scalar_type(), "combine_tokens", [&](auto element) {
    using T = decltype(element);
    const auto* weight = weights.const_data_ptr<Accurate<T>>();
    T* to = dy.data_ptr<T>();
    at::parallel_for(0, count, row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        write_scaled(from.row<T>(source[r]), weight[slots[r]], to + r * width, width);
    });
  });
  return dy;
}

at::Tensor choice_dots(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& weight_Tk,
                       const at::Tensor& inverse) {
  if constexpr (kCudaBuild)
    if (dout.is_cuda()) return cuda::choice_dots(dout, y, weight_Tk, inverse);
  const Rows gradient(dout), value(y);
  const int64_t slots = inverse.numel(), choices = weight_Tk.size(1);
  at::Tensor out = at::empty(weight_Tk.sizes(),
                             weight_Tk.options().dtype(y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  const int64_t* rows = inverse.const_data_ptr<int64_t>();
  dispatch_element(y.scalar_type(), "combine_tokens", [&](auto element) {
    using T = decltype(element);
    auto* to = out.data_ptr<Accurate<T>>();
    at::parallel_for(0, slots, row_grain(value.width), [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s)
        to[s] = dot(gradient.row<T>(s / choices), value.row<T>(rows[s]), value.width);
    });
  });
  return out.to(weight_Tk.scalar_type());
}

}  // namespace scalewright
