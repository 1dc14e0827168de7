#include <torch/csrc/autograd/custom_function.h>
#include "ops/activation.h"

#include "base/error.h"
#include "ops/cuda_build.h"
#include "ops/element.h"
#include "ops/row_math.h"
#include "ops/tensors_cuda.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <typename T>
SW_VECTOR_CLONES void activate(const T* gate, const T* up, T* out, int64_t width) {
  for (int64_t i = 0; i < width; ++i) out[i] = swiglu_value(gate[i], up[i]);
}

template <typename T>
SW_VECTOR_CLONES void activate_gradient(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t width) {
  for (int64_t i = 0; i < width; ++i) swiglu_gradient(dy[i], gate[i], up[i], dgate[i], dup[i]);
}

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    if constexpr (kCudaBuild)
      if (gate_up.is_cuda()) return cuda::swiglu_forward(gate_up);
    const Rows in(gate_up);
    const int64_t width = in.width / 2;
    at::Tensor out = at::empty({in.count, width}, gate_up.options());
    dispatch_element(gate_up.scalar_type(), "swiglu", [&](auto element) {
      using T = decltype(element);
      T* to = out.data_ptr<T>();
      at::parallel_for(0, in.count, row_grain(in.width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) activate(in.row<T>(r), in.row<T>(r) + width, to + r * width, width);
      });
    });
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    if constexpr (kCudaBuild)
      if (gate_up.is_cuda()) return {cuda::swiglu_backward(grads[0], gate_up)};
    const Rows in(gate_up), dy(grads[0]);
    const int64_t width = in.width / 2;
    at::Tensor dx = at::empty(gate_up.sizes(), gate_up.options());
    dispatch_element(gate_up.scalar_type(), "swiglu", [&](auto element) {
      using T = decltype(element);
      T* to = dx.data_ptr<T>();
      at::parallel_for(0, in.count, row_grain(in.width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          activate_gradient(dy.row<T>(r), in.row<T>(r), in.row<T>(r) + width, to + r * in.width,
                            to + r * in.width + width, width);
      });
    });
    return {dx};
  }
};

/// The same in ATen's own functions, for devices without a kernel of ours.
at::Tensor composed(const at::Tensor& gate_up) {
  const auto halves = gate_up.to(gate_up.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).chunk(2, -1);
  return (at::silu(halves[0]) * halves[1]).to(gate_up.scalar_type());
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  SW_CHECK(gate_up.dim() == 2 && gate_up.size(1) % 2 == 0, "swiglu of {} dimensions, {} values a row", gate_up.dim(),
           gate_up.size(-1));
  return has_kernels(gate_up) ? SwiGlu::apply(gate_up) : composed(gate_up);
}

}  // namespace scalewright
