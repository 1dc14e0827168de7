#include "quant/rows.h"

#include "base/error.h"
#include "quant/numeric.h"

namespace scalewright {
namespace {

constexpr int64_t kElementsPerChunk = 1 << 15;

void check(const at::Tensor& t, const char* what) {
  SW_CHECK(t.device().is_cpu() && t.is_contiguous(), "{} must be a contiguous CPU tensor", what);
  const auto d = t.scalar_type();
  SW_CHECK(d == at::kFloat || d == at::kDouble || d == at::kBFloat16 || d == at::kHalf, "{} has dtype {}", what, c10::toString(d));
}

template <class From, class To>
void convert(const From* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(from[i]);
}

template <class To>
void read(const at::Tensor& t, int64_t begin, int64_t n, To* to) {
  switch (t.scalar_type()) {
    case at::kFloat: return convert(t.const_data_ptr<float>() + begin, n, to);
    case at::kDouble: return convert(t.const_data_ptr<double>() + begin, n, to);
    case at::kBFloat16: {
      const auto* bits = reinterpret_cast<const std::uint16_t*>(t.const_data_ptr<at::BFloat16>()) + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = numeric::float_of(std::uint32_t{bits[i]} << 16);
      return;
    }
    default: {
      const at::Half* halves = t.const_data_ptr<at::Half>() + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(static_cast<float>(halves[i]));
    }
  }
}

}  // namespace

RowReader::RowReader(const at::Tensor& t, int64_t columns, const char* what) : t_(t), rows_(columns ? t.numel() / columns : 0), columns_(columns) {
  check(t, what);
  floats_ = t.scalar_type() == at::kFloat ? t.const_data_ptr<float>() : nullptr;
}

const float* RowReader::row(int64_t row, float* buffer) const {
  if (floats_) return floats_ + row * columns_;
  read(t_, row * columns_, columns_, buffer);
  return buffer;
}

void RowReader::row(int64_t row, double* buffer) const { read(t_, row * columns_, columns_, buffer); }

RowWriter::RowWriter(at::Tensor t, int64_t columns, const char* what) : t_(std::move(t)), columns_(columns) {
  check(t_, what);
  floats_ = t_.scalar_type() == at::kFloat ? t_.mutable_data_ptr<float>() : nullptr;
}

float* RowWriter::target(int64_t row, float* buffer) const { return floats_ ? floats_ + row * columns_ : buffer; }

void RowWriter::write(int64_t row, const float* values) const {
  switch (t_.scalar_type()) {
    case at::kFloat:
      if (values != floats_ + row * columns_) convert(values, columns_, floats_ + row * columns_);
      return;
    case at::kDouble: return convert(values, columns_, t_.mutable_data_ptr<double>() + row * columns_);
    case at::kBFloat16: return convert(values, columns_, t_.mutable_data_ptr<at::BFloat16>() + row * columns_);
    default: return convert(values, columns_, t_.mutable_data_ptr<at::Half>() + row * columns_);
  }
}

void parallel_rows(int64_t rows, int64_t columns, const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kElementsPerChunk / std::max<int64_t>(1, columns)), body);
}

float round_to(at::ScalarType dtype, float x) {
  switch (dtype) {
    case at::kBFloat16: return static_cast<float>(static_cast<at::BFloat16>(x));
    case at::kHalf: return static_cast<float>(static_cast<at::Half>(x));
    case at::kFloat: return x;
    default: throw BugError(fmt::format("scales cannot be stored as {}", c10::toString(dtype)));
  }
}

}  // namespace scalewright
