#include "quant/weight_loops.h"

#include "base/error.h"
#include "ops/cuda_build.h"
#include "quant/rows.h"
#include "quant/tensors_cuda.h"

namespace scalewright {
namespace {

/// The scales of a weight as raw float32 arrays, ready for row-wise use by many threads.
class ScaleTable {
 public:
  ScaleTable(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK)
      : scheme_(scheme), ref_(scales.ref.to(at::kCPU)), alpha_(alpha.detach().to(at::kCPU, at::kFloat).contiguous()), rows_(w_ENK.size(1)) {
    SW_CHECK(w_ENK.dim() == 3 && w_ENK.size(0) == ref_.size(0) && w_ENK.size(1) == ref_.size(1), "a weight of another shape than its scales");
    SW_CHECK(alpha_.sizes() == ref_.sizes(), "alpha has another shape than the reference scales");
    ref_data_ = ref_.const_data_ptr<float>();
    alpha_data_ = alpha_.const_data_ptr<float>();
    columns = w_ENK.size(2);
    group = scheme.group(columns);
    groups = ref_.size(2);
    if (scales.global.defined()) global_ = scales.global.to(at::kCPU).contiguous();
    if (scales.divisor.defined()) divisor_ = scales.divisor.to(at::kCPU).contiguous();
    global_data_ = global_.defined() ? global_.const_data_ptr<float>() : nullptr;
    divisor_data_ = divisor_.defined() ? divisor_.const_data_ptr<float>() : nullptr;
  }

  /// Fills `row` for row `index` of [E*N].
  void effective(int64_t index, EffectiveRow& row) const {
    const int64_t expert = index / rows_;
    effective_scales(scheme_, ref_data_ + index * groups, alpha_data_ + index * groups,
                     global_data_ ? global_data_[expert] : 0.0f, divisor_data_ ? divisor_data_[expert] : 0.0f, row);
  }

  int64_t columns, group, groups;

 private:
  WeightScheme scheme_;
  at::Tensor ref_, alpha_, global_, divisor_;
  const float *ref_data_, *alpha_data_, *global_data_, *divisor_data_;   // the last two nullptr where the format has none
  int64_t rows_;
};

template <class T>
void add_row(T* to, const double* sums, const std::vector<double>& slope, double factor) {
  for (std::size_t g = 0; g < slope.size(); ++g)
    if (slope[g] != 0.0) to[g] += static_cast<T>(sums[g] * slope[g] * factor);
}

/// [E,N,K/g] of `values` in the dtype in which scales are stored.
at::Tensor stored_scales(const WeightScheme& scheme, const at::Tensor& values) {
  return values.to(scheme.format.layout == ScaleLayout::kTwoLevelBlock ? at::kFloat8_e4m3fn : scheme.scale_dtype);
}

}  // namespace

at::Tensor fake_quantize_weight(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK,
                                at::ScalarType out_dtype, const at::Tensor& into) {
  if constexpr (kCudaBuild)
    if (w_ENK.is_cuda()) return cuda::fake_quantize_weight(scheme, scales, alpha, w_ENK, out_dtype);
  const ScaleTable table(scheme, scales, alpha, w_ENK);
  const at::Tensor w = w_ENK.detach().contiguous();
  const bool reused = into.defined() && into.sizes() == w.sizes() && into.scalar_type() == out_dtype && into.is_contiguous();
  const at::Tensor out = reused ? into : at::empty(w.sizes(), w.options().dtype(out_dtype));
  if (table.columns == 0) return out;
  const RowReader reader(w, table.columns, "weight");
  const RowWriter writer(out, table.columns, "fake-quantized weight");
  const Rounder rounder = scheme.rounder();
  parallel_rows(reader.rows(), table.columns, [&](int64_t begin, int64_t end) {
    EffectiveRow scale(table.groups);
    std::vector<float> in(table.columns), result(table.columns);
    for (int64_t row = begin; row < end; ++row) {
      table.effective(row, scale);
      float* target = writer.target(row, result.data());
      fake_quantize_row(rounder, scale.scales(table.group), reader.row(row, in.data()), target);
      writer.write(row, target);
    }
  });
  return out;
}

void add_weight_alpha_gradient(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK,
                               int64_t expert, int64_t row_begin, const at::Tensor& dw, at::Tensor& d_alpha) {
  if constexpr (kCudaBuild)
    if (w_ENK.is_cuda()) return cuda::add_weight_alpha_gradient(scheme, scales, alpha, w_ENK, expert * w_ENK.size(1) + row_begin, dw, d_alpha);
  const ScaleTable table(scheme, scales, alpha, w_ENK);
  SW_CHECK(dw.dim() == 2 && dw.size(1) == table.columns, "dW has {} columns, the weight {}", dw.size(-1), table.columns);
  SW_CHECK(expert >= 0 && expert < w_ENK.size(0) && row_begin >= 0 && row_begin + dw.size(0) <= w_ENK.size(1), "rows {}.. of expert {}", row_begin,
           expert);
  SW_CHECK(d_alpha.sizes() == alpha.sizes() && d_alpha.is_contiguous(), "d_alpha must be contiguous and shaped as alpha");
  if (table.columns == 0) return;
  const at::Tensor w = w_ENK.detach()[expert].contiguous(), gradient = dw.detach().contiguous();
  const RowReader weights(w, table.columns, "weight"), gradients(gradient, table.columns, "dW");
  const Rounder rounder = scheme.rounder();
  const bool in_double = gradient.scalar_type() == at::kDouble;
  const double factor = 1.0 / std::sqrt(static_cast<double>(scheme.elements(table.columns)) * scheme.format.qmax);
  parallel_rows(gradients.rows(), table.columns, [&](int64_t begin, int64_t end) {
    EffectiveRow scale(table.groups);
    std::vector<float> in(table.columns), d32(in_double ? 0 : table.columns);
    std::vector<double> d(in_double ? table.columns : 0), sums(table.groups);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t index = expert * w_ENK.size(1) + row_begin + row;
      table.effective(index, scale);
      const float* values = weights.row(row_begin + row, in.data());
      if (in_double) {
        gradients.row(row, d.data());
        scale_gradient_row(rounder, scale.scales(table.group), scale.range(), values, d.data(), sums.data());
      } else {
        scale_gradient_row(rounder, scale.scales(table.group), scale.range(), values, gradients.row(row, d32.data()), sums.data());
      }
      if (d_alpha.scalar_type() == at::kDouble)
        add_row(d_alpha.mutable_data_ptr<double>() + index * table.groups, sums.data(), scale.slope, factor);
      else
        add_row(d_alpha.mutable_data_ptr<float>() + index * table.groups, sums.data(), scale.slope, factor);
    }
  });
}

QuantizedWeight quantize_weight(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w_ENK) {
  const ScaleTable table(scheme, scales, alpha, w_ENK);
  const at::Tensor w = w_ENK.detach().to(at::kCPU).contiguous();
  const bool integer = scheme.format.grid == Grid::kInt4 || scheme.format.grid == Grid::kInt8;
  QuantizedWeight result;
  result.codes = at::empty(w.sizes(), at::TensorOptions().dtype(integer ? at::kChar : at::kByte));
  const at::Tensor stored = at::empty(scales.ref.sizes(), at::kFloat);
  const RowReader reader(w, table.columns, "weight");
  const Rounder rounder = scheme.rounder();
  auto* codes = static_cast<std::uint8_t*>(result.codes.mutable_data_ptr());
  auto* stored_data = stored.mutable_data_ptr<float>();
  parallel_rows(reader.rows(), table.columns, [&](int64_t begin, int64_t end) {
    EffectiveRow scale(table.groups);
    std::vector<float> in(table.columns);
    for (int64_t row = begin; row < end; ++row) {
      table.effective(row, scale);
      code_row(rounder, scale.scales(table.group), reader.row(row, in.data()), codes + row * table.columns);
      std::copy(scale.stored.begin(), scale.stored.end(), stored_data + row * table.groups);
    }
  });
  result.scale = stored_scales(scheme, stored);
  if (scales.divisor.defined()) result.global_scale = scales.divisor.to(at::kCPU).clone();
  return result;
}

at::Tensor dequantize(const QuantizedWeight& q, const TensorFormat& format, bool vllm_w4afp8) {
  const int64_t columns = q.codes.size(2), groups = q.scale.size(2), group = columns / groups;
  const at::Tensor codes = q.codes.contiguous(), scale = q.scale.to(at::kFloat).contiguous();
  const at::Tensor out = at::empty(codes.sizes(), at::kFloat);
  parallel_rows(codes.size(0) * codes.size(1), columns, [&](int64_t begin, int64_t end) {
    std::vector<float> multiply(groups);
    for (int64_t row = begin; row < end; ++row) {
      const float* stored = scale.const_data_ptr<float>() + row * groups;
      if (q.global_scale.defined()) {
        const float global = 1.0f / q.global_scale.const_data_ptr<float>()[row / codes.size(1)];
        for (int64_t g = 0; g < groups; ++g) multiply[g] = stored[g] * global;
      } else if (vllm_w4afp8) {
        vllm_w4afp8_scales(stored, groups, multiply.data());
      } else {
        std::copy(stored, stored + groups, multiply.data());
      }
      dequantize_row(format.grid, {nullptr, multiply.data(), groups, group}, static_cast<const std::uint8_t*>(codes.const_data_ptr()) + row * columns,
                     out.mutable_data_ptr<float>() + row * columns);
    }
  });
  return out;
}

}  // namespace scalewright
