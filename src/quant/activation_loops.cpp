#include "quant/activation_loops.h"

#include <limits>

#include "base/error.h"
#include "quant/numeric.h"
#include "quant/rows.h"

namespace scalewright {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeastNormal = 0x1p-126f;
constexpr float kPeerFloor = 1e-10f, kPeerRefFloor = 1e-12f;

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

void token_scale(const ActivationScheme& scheme, float amax, EffectiveRow& row) {
  const auto qmax = static_cast<float>(scheme.format.qmax);
  const bool deploy = scheme.rules == Rules::kDeploy;
  row.divide[0] = row.multiply[0] = std::max(amax / qmax, deploy ? kLeastNormal : kPeerFloor);  // in this order NaN stays
  row.high[0] = deploy ? kInfinity : qmax;
  row.low[0] = -row.high[0];
}

/// slope = d(effective scale)/dS; the block scale follows S inversely, straight through its rounding, so little is left of it.
void peer_blocks(const float* amax, float global, EffectiveRow& row) {
  for (std::size_t g = 0; g < row.divide.size(); ++g) {
    const float raw = amax[g] > 0 ? (amax[g] / numeric::kE2M1Max) / global : 1.0f;
    const float block = numeric::round_e4m3(numeric::clamp(raw, kPeerRefFloor, numeric::kE4M3Max));
    const float unfloored = global * block;
    row.divide[g] = row.multiply[g] = std::max(unfloored, kPeerFloor);
    row.low[g] = -numeric::kE2M1Max;
    row.high[g] = numeric::kE2M1Max;
    const bool follows = raw >= kPeerRefFloor && raw <= numeric::kE4M3Max && amax[g] > 0;
    row.slope[g] = unfloored >= kPeerFloor ? static_cast<double>(block) - (follows ? raw : 0.0) : 0.0;
  }
}

void deploy_blocks(const float* amax, float global, EffectiveRow& row) {
  for (std::size_t g = 0; g < row.divide.size(); ++g) {
    const float raw = (amax[g] / numeric::kE2M1Max) / global;
    const float block = numeric::round_e4m3(raw);
    const bool vanishes = block == 0.0f;   // engines write zeros where the block scale underflows
    const bool clips = raw > numeric::kE4M3Max;
    row.multiply[g] = block * global;
    row.divide[g] = vanishes ? kInfinity : row.multiply[g];
    row.high[g] = clips ? numeric::kE2M1Max : kInfinity;
    row.low[g] = -row.high[g];
    row.slope[g] = vanishes ? 0.0 : static_cast<double>(block) - (clips ? 0.0 : raw);
  }
}

/// Scales of one token, from its own maxima.
class TokenScales {
 public:
  TokenScales(const ActivationScheme& scheme, int64_t columns)
      : scheme_(scheme), group_(scheme.format.group ? scheme.format.group : columns), amax_(columns / group_), row_(columns / group_) {}

  const EffectiveRow& of(int64_t row, const float* x, float global) {
    if (scheme_.row_amax.defined()) amax_[0] = scheme_.row_amax.const_data_ptr<float>()[row];
    else group_amax_row(x, static_cast<int64_t>(amax_.size()), group_, amax_.data());
    if (!scheme_.two_level())
      token_scale(scheme_, amax_[0], row_);
    else if (scheme_.rules == Rules::kDeploy)
      deploy_blocks(amax_.data(), global, row_);
    else
      peer_blocks(amax_.data(), global, row_);
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
  if (x_TK.numel() == 0) return maxima;
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
  const at::Tensor maxima = row_maxima(x_TK.narrow(0, begin, end - begin));
  float largest;
  group_amax_row(maxima.const_data_ptr<float>(), 1, end - begin, &largest);
  return largest;
}

}  // namespace scalewright
