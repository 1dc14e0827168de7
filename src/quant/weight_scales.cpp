#include "quant/weight_scales.h"

#include <limits>

#include "base/error.h"
#include "quant/numeric.h"
#include "quant/rows.h"

namespace scalewright {
namespace {

using numeric::clamp;

constexpr float kTwoLevelSpan = 2688.0f;                // 6 * 448: amax over the global
constexpr float kLargest = 0x1.fep127f;                 // the largest bfloat16: no dequantized value may exceed it
constexpr float kLeastGlobal = 0x1p-117f;               // times the least block scale 2^-9 it is the least normal float32
constexpr float kLargestGlobal = kLargest / kTwoLevelSpan * (1.0f - 0x1p-20f);
constexpr float kZeroGroupScale = 0x1p-24f;             // of a group of zeros: any positive value that every scale dtype holds
constexpr float kPeerFloor = 1e-10f, kPeerRefFloor = 1e-12f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// E4M3 rounds up to 448 from 448 to 464, and to at least 2^-9 from 2^-10: beyond, a block scale is clipped.
constexpr float kBlockClipHigh = 464.0f, kBlockClipLow = 0x1p-10f;
// The own maximum of a row is in range by definition; this absorbs the rounding of amax / qmax.
constexpr float kRangeSlack = 1.0f + 0x1p-16f;

float code_low(Grid grid, bool deploy) {
  switch (grid) {
    case Grid::kE2M1: return -6.0f;
    case Grid::kInt4: return deploy ? -8.0f : -7.0f;
    case Grid::kInt8: return deploy ? -128.0f : -127.0f;
    case Grid::kE4M3: return -448.0f;
  }
  throw BugError("unknown grid");
}

/// Bounds of a stored group or channel scale: it stays positive and normal (float16 has too few normals, so its denormals count),
/// and the largest code times it stays finite.
struct ScaleBounds {
  float low, high;
};
ScaleBounds scale_bounds(const WeightScheme& scheme) {
  const float limit = -code_low(scheme.format.grid, true);
  if (scheme.scale_dtype == at::kHalf) return {0x1p-24f, 65504.0f};
  // One unit of bfloat16 below the quotient, so that rounding cannot lead above it.
  return {0x1p-126f, round_to(scheme.scale_dtype, kLargest / limit * (1.0f - 0x1p-8f))};
}

/// Reference scales of one row from its group maxima.
void reference_row(const WeightScheme& scheme, at::ScalarType dtype, const float* amax, int64_t groups, float global, float* ref) {
  const auto qmax = static_cast<float>(scheme.format.qmax);
  const bool two_level = scheme.format.layout == ScaleLayout::kTwoLevelBlock;
  const bool weight_dtype = scheme.rules == Rules::kPeerTriton && dtype != at::kDouble;  // its references are made in the weight's dtype
  const auto rounded = [&](float x) { return weight_dtype ? round_to(dtype, x) : x; };
  for (int64_t g = 0; g < groups; ++g) {
    float r = rounded(amax[g] / qmax);
    if (two_level) r = rounded(r / global);
    switch (scheme.rules) {
      case Rules::kDeploy: ref[g] = two_level || amax[g] > 0 ? r : kZeroGroupScale; break;
      case Rules::kPeerEager: ref[g] = std::max(r, two_level ? kPeerRefFloor : kPeerFloor); break;
      case Rules::kPeerTriton: ref[g] = std::max(r, rounded(kPeerRefFloor)); break;
    }
  }
}

float peer_global(const WeightScheme& scheme, at::ScalarType dtype, float amax) {
  const bool weight_dtype = scheme.rules == Rules::kPeerTriton && dtype != at::kDouble;
  const float s = amax / kTwoLevelSpan;
  return weight_dtype ? std::max(round_to(dtype, s), round_to(dtype, kPeerFloor)) : std::max(s, kPeerFloor);
}

void check_finite(const at::Tensor& amax, const at::Tensor& w, const std::string& name) {
  if (at::isfinite(amax).all().item<bool>()) return;
  const auto index = at::nonzero(at::isfinite(w).logical_not())[0];
  throw DataError(fmt::format("{}: the weight is not finite at [{}, {}, {}]\nhint: check the model's files; a quantizer needs finite weights", name,
                              index[0].item<int64_t>(), index[1].item<int64_t>(), index[2].item<int64_t>()));
}

void peer_two_level(const WeightScheme& scheme, const float* ref, const float* alpha, float global, EffectiveRow& row) {
  const bool strict = scheme.rules == Rules::kPeerTriton;
  for (std::size_t g = 0; g < row.divide.size(); ++g) {
    const ClampedAlpha a = clamped_alpha(scheme.rules, alpha[g]);
    const float raw = ref[g] * a.value;
    const float block = numeric::round_e4m3(clamp(raw, kPeerRefFloor, numeric::kE4M3Max));
    const float unfloored = global * block;
    const float effective = std::max(unfloored, kPeerFloor);
    const bool in_scale = strict ? raw > kPeerRefFloor && raw < numeric::kE4M3Max && unfloored > kPeerFloor
                                 : raw >= kPeerRefFloor && raw <= numeric::kE4M3Max && unfloored >= kPeerFloor;
    row.stored[g] = block;
    row.divide[g] = row.multiply[g] = effective;
    row.slope[g] = a.pass && in_scale ? static_cast<double>(global) * ref[g] : 0.0;
  }
}

void peer_one_level(const WeightScheme& scheme, const float* ref, const float* alpha, EffectiveRow& row) {
  for (std::size_t g = 0; g < row.divide.size(); ++g) {
    const ClampedAlpha a = clamped_alpha(scheme.rules, alpha[g]);
    const float raw = ref[g] * a.value;
    const float scale = std::max(raw, kPeerRefFloor);
    row.stored[g] = row.divide[g] = row.multiply[g] = scale;
    row.slope[g] = a.pass && (scheme.rules != Rules::kPeerTriton || raw > kPeerRefFloor) ? ref[g] : 0.0;
  }
}

void deploy_two_level(const WeightScheme& scheme, const float* ref, const float* alpha, float global, float divisor, EffectiveRow& row) {
  for (std::size_t g = 0; g < row.divide.size(); ++g) {
    const ClampedAlpha a = clamped_alpha(scheme.rules, alpha[g]);
    const float raw = ref[g] * a.value;
    const float block = numeric::round_e4m3(clamp(raw, numeric::kE4M3Least, numeric::kE4M3Max));
    row.stored[g] = block;
    row.divide[g] = block / divisor;    // what compressed-tensors' compressor divides by
    row.multiply[g] = block * global;   // what a loader multiplies by
    row.slope[g] = a.pass && raw > kBlockClipLow && raw < kBlockClipHigh ? static_cast<double>(global) * ref[g] : 0.0;
    row.high[g] = std::max(raw, numeric::kE4M3Least) * global / row.divide[g] * numeric::kE2M1Max * kRangeSlack;
    row.low[g] = -row.high[g];
  }
}

void deploy_one_level(const WeightScheme& scheme, const float* ref, const float* alpha, EffectiveRow& row) {
  const ScaleBounds bounds = scale_bounds(scheme);
  const auto groups = static_cast<int64_t>(row.divide.size());
  for (int64_t g = 0; g < groups; ++g) {
    const ClampedAlpha a = clamped_alpha(scheme.rules, alpha[g]);
    const float raw = ref[g] * a.value;
    row.stored[g] = round_to(scheme.scale_dtype, clamp(raw, bounds.low, bounds.high));
    row.slope[g] = a.pass && raw >= bounds.low && raw <= bounds.high ? ref[g] : 0.0;
    row.high[g] = raw;
  }
  if (scheme.vllm_w4afp8) {
    vllm_w4afp8_scales(row.stored.data(), groups, row.divide.data());
    for (int64_t g = 0; g < groups; ++g) row.stored[g] = round_to(scheme.scale_dtype, clamp(row.divide[g], bounds.low, bounds.high));
    vllm_w4afp8_scales(row.stored.data(), groups, row.divide.data());
  } else {
    row.divide = row.stored;
  }
  row.multiply = row.divide;
  const auto qmax = static_cast<float>(scheme.format.qmax);
  const float low = code_low(scheme.format.grid, true);
  for (int64_t g = 0; g < groups; ++g) {
    const float unrounded = row.high[g] / row.divide[g] * kRangeSlack;
    row.high[g] = unrounded * qmax;
    row.low[g] = unrounded * low;
  }
}

}  // namespace

ClampedAlpha clamped_alpha(Rules rules, float alpha) {
  const float value = clamp(alpha, kAlphaLow, kAlphaHigh);
  const bool strict = rules == Rules::kPeerTriton;
  return {value, strict ? alpha > kAlphaLow && alpha < kAlphaHigh : alpha >= kAlphaLow && alpha <= kAlphaHigh};
}

Rounder WeightScheme::rounder() const {
  const bool deploy = rules == Rules::kDeploy;
  const float low = code_low(format.grid, deploy);
  const auto high = static_cast<float>(format.qmax);
  switch (format.grid) {
    case Grid::kE2M1: return {rules == Rules::kPeerEager ? Rounding::kE2M1TowardZero : Rounding::kE2M1Even, low, high};
    case Grid::kInt4: return {rules == Rules::kPeerTriton ? Rounding::kIntegerAway : Rounding::kInteger, low, high};
    case Grid::kInt8: return {Rounding::kInteger, low, high};
    case Grid::kE4M3: return {Rounding::kE4M3, low, high};
  }
  throw BugError("unknown grid");
}

ReferenceScales reference_scales(const WeightScheme& scheme, const at::Tensor& w_ENK, const std::string& name, const Group* holders,
                                 const Group* columns_of_rows) {
  SW_CHECK(w_ENK.dim() == 3, "{}: a stacked weight has 3 dimensions, not {}", name, w_ENK.dim());
  const int64_t experts = w_ENK.size(0), rows = w_ENK.size(1), columns = w_ENK.size(2);
  const int64_t group = scheme.group(columns);
  if (columns > 0 && columns % group != 0)
    throw DataError(fmt::format("{}: {} input features are not a multiple of the format's group of {}\nhint: skip this projection (quantize.skip) or choose "
                                "a format with channel scales (fp8, w8a8)", name, columns, group));
  const int64_t groups = scheme.groups(columns);
  const at::Tensor w = w_ENK.contiguous();
  at::Tensor amax = at::zeros({experts, rows, groups}, at::kFloat);
  const RowReader reader(w, columns, "weight");
  auto* amax_data = amax.mutable_data_ptr<float>();
  parallel_rows(columns > 0 ? experts * rows : 0, columns, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(columns);
    for (int64_t row = begin; row < end; ++row) group_amax_row(reader.row(row, buffer.data()), groups, group, amax_data + row * groups);
  });
  check_finite(amax, w, name);
  if (columns_of_rows && scheme.format.layout == ScaleLayout::kChannel) columns_of_rows->all_reduce(amax, Reduce::kMax);

  ReferenceScales result;
  result.ref = at::empty_like(amax);
  std::vector<float> made_with(experts, 1.0f);   // the multiplier that references are relative to
  if (scheme.format.layout == ScaleLayout::kTwoLevelBlock) {
    result.global = at::empty({experts}, at::kFloat);
    if (scheme.rules == Rules::kDeploy) result.divisor = at::empty({experts}, at::kFloat);
    at::Tensor largest_E = at::zeros({experts}, at::kFloat);
    if (amax.numel() > 0) largest_E.copy_(amax.flatten(1).amax(1));
    if (holders) holders->all_reduce(largest_E, Reduce::kMax);
    for (int64_t e = 0; e < experts; ++e) {
      const float largest = largest_E[e].item<float>();
      if (scheme.rules == Rules::kDeploy) {
        const float divisor = nvfp4_divisor(largest);
        result.divisor[e] = divisor;
        result.global[e] = 1.0f / divisor;
        made_with[e] = largest > 0 ? clamp(largest / kTwoLevelSpan, kLeastGlobal, kLargestGlobal) : 1.0f / kTwoLevelSpan;
      } else {
        made_with[e] = peer_global(scheme, w.scalar_type(), largest);
        result.global[e] = made_with[e];
      }
    }
  }
  auto* ref_data = result.ref.mutable_data_ptr<float>();
  for (int64_t row = 0; row < experts * rows; ++row)
    reference_row(scheme, w.scalar_type(), amax_data + row * groups, groups, made_with[row / rows], ref_data + row * groups);
  return result;
}

EffectiveRow::EffectiveRow(int64_t groups)
    : stored(groups), divide(groups), multiply(groups), low(groups, -kInfinity), high(groups, kInfinity), slope(groups) {}

void effective_scales(const WeightScheme& scheme, const float* ref, const float* alpha, float global, float divisor, EffectiveRow& row) {
  const bool two_level = scheme.format.layout == ScaleLayout::kTwoLevelBlock;
  if (scheme.rules == Rules::kDeploy)
    return two_level ? deploy_two_level(scheme, ref, alpha, global, divisor, row) : deploy_one_level(scheme, ref, alpha, row);
  two_level ? peer_two_level(scheme, ref, alpha, global, row) : peer_one_level(scheme, ref, alpha, row);
  const auto qmax = static_cast<float>(scheme.format.qmax);
  std::fill(row.low.begin(), row.low.end(), -qmax);
  std::fill(row.high.begin(), row.high.end(), qmax);
}

float nvfp4_divisor_of(float multiplier) { return 1.0f / clamp(multiplier, kLeastGlobal, kLargestGlobal); }

float nvfp4_divisor(float amax) { return amax > 0 ? nvfp4_divisor_of(amax / kTwoLevelSpan) : kTwoLevelSpan; }

void vllm_w4afp8_scales(const float* stored, int64_t groups, float* deployed) {
  float largest = 0.0f;
  for (int64_t g = 0; g < groups; ++g) largest = std::max(largest, stored[g]);
  const float c = largest / 448.0f;
  for (int64_t g = 0; g < groups; ++g) {
    const float eighth = numeric::round_e4m3(numeric::round_e4m3(stored[g] / c) / 8.0f);
    deployed[g] = 8.0f * c * std::max(eighth, numeric::kE4M3Least);
  }
}

}  // namespace scalewright
