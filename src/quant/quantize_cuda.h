// The quantizers' loops on a GPU, on plain device pointers. Every call only queues work on `stream`. The arithmetic of an element and
// of a scale is that of grids.h and scale_rules.h, sums run in the CPU kernels' order: results have the same bits as on the CPU.
#pragma once
#include "ops/cuda_types.h"
#include "quant/grids.h"
#include "quant/scale_rules.h"

namespace scalewright::cuda {

/// A stacked weight's scales: rows are those of [E*N].
struct WeightView {
  Rules rules;
  bool two_level, vllm_w4afp8;
  scale_rules::OneLevel one_level;
  Rounder rounder;
  const float *ref, *alpha;        // [rows, groups]
  const float *global, *divisor;   // [E] (two-level; divisor: deploy), else nullptr
  const float* row_c;              // [rows, 2] of row_maxima (vllm_w4afp8), else nullptr
  int64_t rows_per_expert, columns, group, groups;
};

/// largest[row, group] = the largest magnitude among `group` neighbours of x [count * group]; NaN when one is there.
void launch_group_amax(Element element, const void* x, int64_t count, int64_t group, float* largest, cudaStream_t stream);

/// row_c [rows, 2]: the divisors of vLLM's two roundings of a row's scales.
void launch_vllm_row_c(const WeightView& view, int64_t rows, float* row_c, cudaStream_t stream);

/// out [rows, columns] from w of the same shape.
void launch_fake_quantize_weight(const WeightView& view, Element from, const void* w, Element to, void* out, int64_t rows, cudaStream_t stream);

/// Adds to d_alpha [all rows, groups] (float64 when dw is, else float32) from dw [rows, columns], the gradient of the fake-quantized rows
/// first_row.. of w.
void launch_weight_alpha_gradient(const WeightView& view, Element from, const void* w, Element gradient, const void* dw, double factor, void* d_alpha,
                                  int64_t first_row, int64_t rows, cudaStream_t stream);

/// One call's tokens [rows, columns]; rows offsets[i]..offsets[i+1] are segment i.
struct ActivationView {
  bool deploy, two_level;
  float qmax;
  Rounder rounder;
  const float* row_amax;    // [rows] (one level, where other ranks hold more columns), else nullptr
  const float* globals;     // [segments] (two-level), else nullptr
  const int64_t* offsets;   // [segments + 1] (two-level), else nullptr
  int64_t segments, rows, columns;
};
inline constexpr int64_t kActivationBlock = 16;   // columns of a two-level format's scale

/// globals[i] = scale_rules::activation_global(deploy, ref[i], alpha[i]).
void launch_activation_globals(bool deploy, const float* ref, const float* alpha, int64_t count, float* globals, cudaStream_t stream);

void launch_fake_quantize_activation(const ActivationView& view, Element element, const void* x, void* out, cudaStream_t stream);

/// dx = dy where x is in range, else 0. `terms` [rows, columns / 16] (two-level, or nullptr): each block's part of d(loss)/dS.
void launch_activation_gradient(const ActivationView& view, Element element, const void* x, const void* dy, void* dx, double* terms, cudaStream_t stream);

/// gradient[i] = factor * ref[i] * the sum of segment i's terms where alpha[i] is not clamped, else 0. `by_row` [rows]: scratch.
void launch_global_gradient(const ActivationView& view, const double* terms, double* by_row, const float* ref, const float* alpha, double factor,
                            double* gradient, cudaStream_t stream);

}  // namespace scalewright::cuda
