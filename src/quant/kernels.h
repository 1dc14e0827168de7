// Loops over one row of a matrix: the only code here that runs once an element. Same bits on every CPU.
#pragma once
#include <cstdint>

#include "quant/grids.h"

namespace scalewright {

/// One row's scales: `groups` scales of `group` elements each. An element's quotient is x / divide, its value q * multiply.
struct RowScales {
  const float* divide;
  const float* multiply;
  int64_t groups, group;
};

/// Where the straight-through estimator sees no clipping: low[g] <= x / divide[g] <= high[g].
struct RowRange {
  const float* low;
  const float* high;
};

void group_amax_row(const float* x, int64_t groups, int64_t group, float* amax);

void fake_quantize_row(const Rounder& rounder, const RowScales& scales, const float* x, float* out);

/// Codes: E2M1 sign << 3 | index, E4M3 byte, or the integer's byte. A quotient that is zero has code 0, whatever its sign.
void code_row(const Rounder& rounder, const RowScales& scales, const float* x, std::uint8_t* codes);

/// code * multiply.
void dequantize_row(Grid grid, const RowScales& scales, const std::uint8_t* codes, float* out);

/// sums[g] = sum of d * (q - u) over elements in range and of d * q over clipped ones, u = x / divide, in double with a fixed order.
/// d is the gradient with respect to the fake-quantized values.
void scale_gradient_row(const Rounder& rounder, const RowScales& scales, const RowRange& range, const float* x, const double* d, double* sums);
void scale_gradient_row(const Rounder& rounder, const RowScales& scales, const RowRange& range, const float* x, const float* d, double* sums);

/// Where the estimator passes the gradient to x.
void in_range_row(const RowScales& scales, const RowRange& range, const float* x, bool* in_range);

}  // namespace scalewright
