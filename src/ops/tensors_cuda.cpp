#include "ops/tensors_cuda.h"

#include "ops/element.h"
#include "ops/rows_cuda.h"

namespace scalewright::cuda {
namespace {

at::ScalarType accurate_type_of(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

RowsView view_of(const Rows& rows) { return {data_of(rows.tensor), rows.inner, rows.outer_stride, rows.inner_stride}; }

at::Tensor routing_weights(const at::Tensor& weight, const at::Tensor& like) { return weight.to(accurate_type_of(like)).contiguous(); }

const int64_t* indices_of(const at::Tensor& t) { return t.const_data_ptr<int64_t>(); }

}  // namespace

Element element_of(const at::Tensor& t, const char* what) {
  return dispatch_element(t.scalar_type(), what, [](auto element) {
    using T = decltype(element);
    return std::is_same_v<T, double> ? Element::kFloat64 : std::is_same_v<T, float> ? Element::kFloat32 : Element::kBFloat16;
  });
}

const void* data_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

at::Tensor inverse_of(const at::Tensor& slot) {
  at::Tensor inverse = at::empty_like(slot);
  launch_inverse(indices_of(slot), slot.numel(), inverse.mutable_data_ptr<int64_t>(), stream_of(slot));
  return inverse;
}

at::Tensor copy_rows(const at::Tensor& x, const at::Tensor& token) {
  const Rows from(x);
  at::Tensor out = at::empty({token.numel(), from.width}, x.options());
  launch_copy_rows(element_of(x, "gather_tokens"), view_of(from), indices_of(token), token.numel(), from.width, out.mutable_data_ptr(), stream_of(x));
  return out;
}

at::Tensor sum_choices(const at::Tensor& y, const at::Tensor& weight_Tk, const at::Tensor& inverse, int64_t tokens) {
  const Rows from(y);
  at::Tensor out = at::empty({tokens, from.width}, y.options());
  const at::Tensor weights = weight_Tk.defined() ? routing_weights(weight_Tk, y) : at::Tensor();
  launch_sum_choices(element_of(y, "combine_tokens"), view_of(from), data_of(weights), indices_of(inverse), tokens, tokens == 0 ? 0 : inverse.numel() / tokens,
                     from.width, out.mutable_data_ptr(), stream_of(y));
  return out;
}

at::Tensor scale_rows(const at::Tensor& dout, const at::Tensor& weight_Tk, const at::Tensor& token, const at::Tensor& slot) {
  const Rows from(dout);
  at::Tensor dy = at::empty({token.numel(), from.width}, dout.options());
  const at::Tensor weights = routing_weights(weight_Tk, dout);
  launch_scale_rows(element_of(dout, "combine_tokens"), view_of(from), data_of(weights), indices_of(token), indices_of(slot), token.numel(), from.width,
                    dy.mutable_data_ptr(), stream_of(dout));
  return dy;
}

at::Tensor choice_dots(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& weight_Tk, const at::Tensor& inverse) {
  const Rows gradient(dout), value(y);
  at::Tensor out = at::empty(weight_Tk.sizes(), weight_Tk.options().dtype(accurate_type_of(y)));
  launch_choice_dots(element_of(y, "combine_tokens"), view_of(gradient), view_of(value), indices_of(inverse), inverse.numel(), weight_Tk.size(1), value.width,
                     out.mutable_data_ptr(), stream_of(y));
  return out.to(weight_Tk.scalar_type());
}

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const Rows rows(x);
  const at::Tensor w = weight.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options()), rstd = at::empty({rows.count}, x.options().dtype(accurate_type_of(x)));
  launch_rms_norm(element_of(x, "rms_norm"), view_of(rows), data_of(w), eps, rows.count, rows.width, y.mutable_data_ptr(), rstd.mutable_data_ptr(),
                  stream_of(x));
  return {y, rstd};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                                    bool want_dx, bool want_dweight) {
  const Rows rows(x), gradients(dy);
  const at::Tensor w = weight.contiguous();
  const Element element = element_of(x, "rms_norm");
  at::Tensor dx, dweight;
  if (want_dx) {
    dx = at::empty(x.sizes(), x.options());
    launch_rms_norm_input_gradient(element, view_of(gradients), view_of(rows), data_of(w), data_of(rstd), rows.count, rows.width, dx.mutable_data_ptr(),
                                   stream_of(x));
  }
  if (want_dweight) {
    const int64_t chunks = (rows.count + kNormChunkRows - 1) / kNormChunkRows;
    if (chunks == 0) return {dx, at::zeros_like(w)};
    at::Tensor partial = at::empty({chunks, rows.width}, x.options().dtype(accurate_type_of(x)));
    launch_rms_norm_weight_gradient(element, view_of(gradients), view_of(rows), data_of(rstd), rows.count, rows.width, partial.mutable_data_ptr(),
                                    stream_of(x));
    dweight = partial[0].to(w.scalar_type());
  }
  return {dx, dweight};
}

at::Tensor swiglu_forward(const at::Tensor& gate_up) {
  const Rows in(gate_up);
  at::Tensor out = at::empty({in.count, in.width / 2}, gate_up.options());
  launch_swiglu(element_of(gate_up, "swiglu"), view_of(in), in.count, in.width / 2, out.mutable_data_ptr(), stream_of(gate_up));
  return out;
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const Rows in(gate_up), gradient(dy);
  at::Tensor dx = at::empty(gate_up.sizes(), gate_up.options());
  launch_swiglu_gradient(element_of(gate_up, "swiglu"), view_of(gradient), view_of(in), in.count, in.width / 2, dx.mutable_data_ptr(), stream_of(gate_up));
  return dx;
}

at::Tensor rotate_half(const at::Tensor& x_THD, const at::Tensor& cos, const at::Tensor& sin, bool inverse) {
  const at::Tensor x = x_THD.stride(2) == 1 ? x_THD : x_THD.contiguous(), c = cos.contiguous(), s = sin.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  launch_rotate_half(element_of(x, "rope"), data_of(x), x.stride(0), x.stride(1), data_of(c), data_of(s), inverse, x.size(0), x.size(1), x.size(2) / 2,
                     y.mutable_data_ptr(), stream_of(x));
  return y;
}

}  // namespace scalewright::cuda
