// Rows of a tensor as float32, whatever their dtype, and the split of rows over threads.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace scalewright {

/// Contiguous CPU tensor [rows, columns] of bfloat16, float16, float32 or float64, read row by row.
class RowReader {
 public:
  /// `t` is viewed as [rows, columns]; another device or dtype is a BugError naming `what`.
  RowReader(const at::Tensor& t, int64_t columns, const char* what);
  int64_t rows() const { return rows_; }
  /// Row `row` rounded to float32: a pointer into the tensor, or into `buffer` [columns].
  const float* row(int64_t row, float* buffer) const;
  /// Row `row` in double in `buffer` [columns].
  void row(int64_t row, double* buffer) const;

 private:
  at::Tensor t_;
  int64_t rows_, columns_;
  const float* floats_;   // of a float32 tensor
};

/// The same for writing.
class RowWriter {
 public:
  RowWriter(at::Tensor t, int64_t columns, const char* what);
  /// Where to put row `row`: into the tensor, or into `buffer`, which write() then converts.
  float* target(int64_t row, float* buffer) const;
  void write(int64_t row, const float* values) const;

 private:
  at::Tensor t_;
  int64_t columns_;
  float* floats_;   // of a float32 tensor
};

/// body(begin, end) over ranges of rows, on all threads, in chunks of a sensible number of elements.
void parallel_rows(int64_t rows, int64_t columns, const std::function<void(int64_t, int64_t)>& body);

/// x in `dtype` (float32, bfloat16 or float16) and back.
float round_to(at::ScalarType dtype, float x);

}  // namespace scalewright
