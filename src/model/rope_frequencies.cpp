// Inverse frequencies of rotary embeddings, as transformers' modeling_rope_utils defines them, in float64.
#include <numbers>

#include "base/error.h"
#include "model/config.h"

namespace scalewright {

namespace {

double plain(const RopeConfig& rope, int64_t pair, int64_t head_dim) {
  return 1.0 / std::pow(rope.theta, static_cast<double>(2 * pair) / static_cast<double>(head_dim));
}

/// Long wavelengths are stretched by `factor`, short ones kept, those between interpolated (Llama 3.1).
double llama3(const RopeConfig& rope, double inverse) {
  const double original = static_cast<double>(rope.original_max_position);
  const double wavelength = 2 * std::numbers::pi / inverse;
  if (wavelength > original / rope.low_freq_factor) return inverse / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return inverse;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * inverse / rope.factor + smooth * inverse;
}

/// Which pairs turn `beta_fast` and `beta_slow` times over the original length: between them yarn interpolates.
struct YarnRange {
  double low, high;
};

YarnRange yarn_range(const RopeConfig& rope, int64_t head_dim) {
  const double dim = static_cast<double>(head_dim);
  const auto correction = [&](double rotations) {
    return dim * std::log(static_cast<double>(rope.original_max_position) / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = correction(rope.beta_fast), high = correction(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;   // transformers' guard against a division by zero
  return {low, high};
}

/// YaRN (Peng et al., 2023).
double yarn(const RopeConfig& rope, int64_t pair, double inverse, const YarnRange& range) {
  const double ramp = std::clamp((static_cast<double>(pair) - range.low) / (range.high - range.low), 0.0, 1.0);
  const double extrapolated = 1 - ramp;
  return inverse / rope.factor * (1 - extrapolated) + inverse * extrapolated;
}

double yarn_attention_scaling(const RopeConfig& rope) {
  const auto mscale = [&](double m) { return rope.factor <= 1 ? 1.0 : 0.1 * m * std::log(rope.factor) + 1.0; };
  if (rope.attention_factor > 0) return rope.attention_factor;
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) return mscale(rope.mscale) / mscale(rope.mscale_all_dim);
  return mscale(1.0);
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  RopeFrequencies result{at::empty({config.head_dim / 2}, at::kDouble), 1.0};
  double* inverse = result.inverse.data_ptr<double>();
  const YarnRange range = yarn_range(rope, config.head_dim);
  for (int64_t pair = 0; pair < config.head_dim / 2; ++pair) {
    const double value = plain(rope, pair, config.head_dim);
    if (rope.type == "default") inverse[pair] = value;
    else if (rope.type == "linear") inverse[pair] = value / rope.factor;
    else if (rope.type == "llama3") inverse[pair] = llama3(rope, value);
    else if (rope.type == "yarn") inverse[pair] = yarn(rope, pair, value, range);
    else SW_CHECK(false, "rope type {} got past the configuration", rope.type);
  }
  if (rope.type == "yarn") result.attention_scaling = yarn_attention_scaling(rope);
  return result;
}

}  // namespace scalewright
