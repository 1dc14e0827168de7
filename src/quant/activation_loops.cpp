#include "quant/activation_loops.h"

#include "base/error.h"
#include "ops/cuda_build.h"
#include "quant/numeric.h"
#include "quant/rows.h"
#include "quant/tensors_cuda.h"

namespace scalewright {
namespace {

Rounder rounder_of(const ActivationScheme& scheme) {
  return WeightScheme{scheme.format, scheme.rules, at::kFloat}.rounder();
}

/// The multiplier of every row's segment (two-level), else empty.
std::vector<float> row_globals(const ActivationScheme& scheme) {
  std::vector<float> result;
  for (std::size_t i = 0; i + 1 < scheme.offsets.size() && scheme.two_level(); ++i)
    result.insert(result.end(), static_cast<std::size_t>(scheme.offsets[i + 1] - scheme.offsets[i]), scheme.globals[i]);
  return result;
}

/// Scales of one token, from its own maxima.
class TokenScales {
 public:
  TokenScales(const ActivationScheme& scheme, int64_t columns)
      : scheme_(scheme), group_(scheme.format.group ? scheme.format.group : columns), amax_(columns / group_), row_(columns / group_) {}

  const EffectiveRow& of(int64_t row, const float* x, float global) {
    if (scheme_.row_amax.defined()) amax_[0] = scheme_.row_amax.const_data_ptr<float>()[row];
    else group_amax_row(x, static_cast<int64_t>(amax_.size()), group_, amax_.data());
    const bool deploy = scheme_.rules == Rules::kDeploy;
    if (!scheme_.two_level()) {
      row_.set(0, scale_rules::token_scale(deploy, static_cast<float>(scheme_.format.qmax), amax_[0]));
      return row_;
    }
    for (std::size_t g = 0; g < amax_.size(); ++g)
      row_.set(static_cast<int64_t>(g), deploy ? scale_rules::deploy_block(amax_[g], global) : scale_rules::peer_block(amax_[g], global));
    return row_;
  }
  int64_t group() const { return group_; }

 private:
  const ActivationScheme& scheme_;
  int64_t group_;
  std::vector<float> amax_;
  EffectiveRow row_;
};

/// Row `row` of `to` is that of `from` where `keep`, else 0; for dtypes whose 0 is all bits 0.
void keep_in_range(const bool* keep, const at::Tensor& from, int64_t row, int64_t columns, at::Tensor& to) {
  const auto bytes = static_cast<int64_t>(from.element_size());
  const auto* source = static_cast<const char*>(from.const_data_ptr()) + row * columns * bytes;
  auto* target = static_cast<char*>(to.mutable_data_ptr()) + row * columns * bytes;
  const auto select = [&]<class T>(T) {
    const auto* in = reinterpret_cast<const T*>(source);
    auto* out = reinterpret_cast<T*>(target);
    for (int64_t i = 0; i < columns; ++i) out[i] = keep[i] ? in[i] : T{0};
  };
  if (bytes == 2) select(std::uint16_t{});
  else if (bytes == 4) select(std::uint32_t{});
  else select(std::uint64_t{});
}

}  // namespace

at::Tensor fake_quantize_activation(const ActivationScheme& scheme, const at::Tensor& x_TK) {
  if constexpr (kCudaBuild)
    if (x_TK.is_cuda()) return cuda::fake_quantize_activation(scheme, x_TK);
  const int64_t columns = x_TK.size(1);
  const at::Tensor x = x_TK.detach().contiguous(), out = at::empty_like(x);
  const std::vector<float> globals = row_globals(scheme);
  const Rounder rounder = rounder_of(scheme);
  const RowReader reader(x, columns, "activation");
  const RowWriter writer(out, columns, "activation");
  parallel_rows(x.size(0), columns, [&](int64_t begin, int64_t end) {
    TokenScales scales(scheme, columns);
    std::vector<float> in(columns), result(columns);
    for (int64_t row = begin; row < end; ++row) {
      const float* values = reader.row(row, in.data());
      const EffectiveRow& scale = scales.of(row, values, globals.empty() ? 0.0f : globals[row]);
      float* target = writer.target(row, result.data());
      fake_quantize_row(rounder, scale.scales(scales.group()), values, target);
      writer.write(row, target);
    }
  });
  return out;
}

ActivationGradient activation_gradient(const ActivationScheme& scheme, const at::Tensor& x_TK, const at::Tensor& dy_TK, bool want_global) {
  const int64_t columns = x_TK.size(1), tokens = x_TK.size(0);
  const at::Tensor x = x_TK.detach().contiguous(), dy = dy_TK.detach().contiguous();
  ActivationGradient result;
  result.x = at::empty_like(dy);
  const std::vector<float> globals = row_globals(scheme);
  const Rounder rounder = rounder_of(scheme);
  const RowReader reader(x, columns, "activation"), gradients(dy, columns, "gradient");
  std::vector<double> by_row(scheme.two_level() && want_global ? tokens : 0, 0.0);
  parallel_rows(tokens, columns, [&](int64_t begin, int64_t end) {
    TokenScales scales(scheme, columns);
    std::vector<float> in(columns);
    const auto in_range = std::make_unique<bool[]>(static_cast<std::size_t>(columns));
    std::vector<double> d(columns), sums(columns / scales.group());
    for (int64_t row = begin; row < end; ++row) {
      const float* values = reader.row(row, in.data());
      const EffectiveRow& scale = scales.of(row, values, globals.empty() ? 0.0f : globals[row]);
      in_range_row(scale.scales(scales.group()), scale.range(), values, in_range.get());
      keep_in_range(in_range.get(), dy, row, columns, result.x);
      if (by_row.empty()) continue;
      gradients.row(row, d.data());
      scale_gradient_row(rounder, scale.scales(scales.group()), scale.range(), values, d.data(), sums.data());
      for (std::size_t g = 0; g < sums.size(); ++g) by_row[row] += sums[g] * scale.slope[g];
    }
  });
  result.factor = 1.0 / std::sqrt(static_cast<double>(scheme.format.group) * scheme.format.qmax);
  for (std::size_t i = 0; i + 1 < scheme.offsets.size() && scheme.two_level(); ++i) {
    ExactSum sum;
    for (int64_t row = scheme.offsets[i]; row < scheme.offsets[i + 1] && want_global; ++row) sum += by_row[row];
    result.global.push_back(sum);
  }
  return result;
}

at::Tensor row_maxima(const at::Tensor& x_TK) {
  at::Tensor maxima = at::zeros({x_TK.size(0)}, at::kFloat);
  if (x_TK.numel() == 0) return maxima.to(x_TK.device());
  if constexpr (kCudaBuild)
    if (x_TK.is_cuda()) return cuda::group_amax(x_TK, x_TK.size(1));
  const at::Tensor x = x_TK.detach().contiguous();
  const RowReader reader(x, x.size(1), "activation");
  auto* data = maxima.mutable_data_ptr<float>();
  parallel_rows(x.size(0), x.size(1), [&](int64_t begin, int64_t end) {
    std::vector<float> in(x.size(1));
    for (int64_t row = begin; row < end; ++row) group_amax_row(reader.row(row, in.data()), 1, x.size(1), data + row);
  });
  return maxima;
}

float rows_amax(const at::Tensor& x_TK, int64_t begin, int64_t end) {
  if (begin == end || x_TK.size(1) == 0) return 0.0f;
  const at::Tensor maxima = row_maxima(x_TK.narrow(0, begin, end - begin)).to(at::kCPU);
  float largest;
  group_amax_row(maxima.const_data_ptr<float>(), 1, end - begin, &largest);
  return largest;
}

}  // namespace scalewright
