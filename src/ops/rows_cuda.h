// Permutations, RMSNorm, SwiGLU and rope on a GPU, on plain device pointers. Every call only queues work on `stream`. The arithmetic of
// an element is that of row_math.h, sums run in the CPU kernels' order: results have the same bits as on the CPU.
#pragma once
#include <cstdint>

#include "ops/cuda_types.h"

namespace scalewright::cuda {

/// Rows of a tensor with two leading strides (in elements), as Rows in element.h; the last stride is 1.
struct RowsView {
  const void* data;
  int64_t inner, outer_stride, inner_stride;
};

/// inverse[slot[r]] = r.
void launch_inverse(const int64_t* slot, int64_t count, int64_t* inverse, cudaStream_t stream);
/// out [count, width] = x[token[r]].
void launch_copy_rows(Element element, const RowsView& x, const int64_t* token, int64_t count, int64_t width, void* out, cudaStream_t stream);
/// out [tokens, width] = sum over choices in order of weight [tokens, choices] (accurate type; nullptr: 1) * y[inverse].
void launch_sum_choices(Element element, const RowsView& y, const void* weight, const int64_t* inverse, int64_t tokens, int64_t choices, int64_t width,
                        void* out, cudaStream_t stream);
/// dy [count, width] = weight[slot] * dout[token].
void launch_scale_rows(Element element, const RowsView& dout, const void* weight, const int64_t* token, const int64_t* slot, int64_t count, int64_t width,
                       void* dy, cudaStream_t stream);
/// out [slots] (accurate type) = dot(dout[slot / choices], y[inverse[slot]]).
void launch_choice_dots(Element element, const RowsView& dout, const RowsView& y, const int64_t* inverse, int64_t slots, int64_t choices, int64_t width,
                        void* out, cudaStream_t stream);

/// y [rows, width], rstd [rows] (accurate type).
void launch_rms_norm(Element element, const RowsView& x, const void* weight, double eps, int64_t rows, int64_t width, void* y, void* rstd,
                     cudaStream_t stream);
void launch_rms_norm_input_gradient(Element element, const RowsView& dy, const RowsView& x, const void* weight, const void* rstd, int64_t rows,
                                    int64_t width, void* dx, cudaStream_t stream);
/// Rows that are added up in a row before the chunks' sums are.
inline constexpr int64_t kNormChunkRows = 64;
/// partial [ceil(rows / 64), width] (accurate type): scratch whose first row becomes the gradient. rows > 0.
void launch_rms_norm_weight_gradient(Element element, const RowsView& dy, const RowsView& x, const void* rstd, int64_t rows, int64_t width, void* partial,
                                     cudaStream_t stream);

/// out [rows, width] from gate_up [rows, 2 width].
void launch_swiglu(Element element, const RowsView& gate_up, int64_t rows, int64_t width, void* out, cudaStream_t stream);
/// dx [rows, 2 width].
void launch_swiglu_gradient(Element element, const RowsView& dy, const RowsView& gate_up, int64_t rows, int64_t width, void* dx, cudaStream_t stream);

/// x [tokens, heads, 2 half] with strides, cos and sin [tokens, half] (accurate type) -> y contiguous.
void launch_rotate_half(Element element, const void* x, int64_t token_stride, int64_t head_stride, const void* cos, const void* sin, bool inverse,
                        int64_t tokens, int64_t heads, int64_t half, void* y, cudaStream_t stream);

}  // namespace scalewright::cuda
