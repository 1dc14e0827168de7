#include "quant/weight_scales.h"

#include <limits>

#include "base/error.h"
#include "ops/cuda_build.h"
#include "quant/numeric.h"
#include "quant/rows.h"
#include "quant/tensors_cuda.h"

namespace scalewright {
namespace {

using numeric::clamp;
using namespace scale_rules;

constexpr float kZeroGroupScale = 0x1p-24f;             // of a group of zeros: any positive value that every scale dtype holds

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

/// float32 [E,N,K/g] on the CPU: the largest magnitude of each group.
at::Tensor group_maxima(const at::Tensor& w, int64_t groups, int64_t group) {
  at::Tensor amax = at::zeros({w.size(0), w.size(1), groups}, at::kFloat);
  const int64_t columns = w.size(2);
  if (columns == 0) return amax;
  if constexpr (kCudaBuild)
    if (w.is_cuda()) return cuda::group_amax(w, group).to(at::kCPU).view(amax.sizes());
  const RowReader reader(w, columns, "weight");
  auto* data = amax.mutable_data_ptr<float>();
  parallel_rows(reader.rows(), columns, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(columns);
    for (int64_t row = begin; row < end; ++row) group_amax_row(reader.row(row, buffer.data()), groups, group, data + row * groups);
  });
  return amax;
}

void check_finite(const at::Tensor& amax, const at::Tensor& w, const std::string& name) {
  if (at::isfinite(amax).all().item<bool>()) return;
  const auto index = at::nonzero(at::isfinite(w).logical_not())[0];
  throw DataError(fmt::format("{}: the weight is not finite at [{}, {}, {}]\nhint: check the model's files; a quantizer needs finite weights", name,
                              index[0].item<int64_t>(), index[1].item<int64_t>(), index[2].item<int64_t>()));
}

void deploy_one_level_row(const WeightScheme& scheme, const float* ref, const float* alpha, EffectiveRow& row) {
  const OneLevel rule = scheme.one_level();
  const auto groups = static_cast<int64_t>(row.divide.size());
  for (int64_t g = 0; g < groups; ++g) row.stored[g] = deploy_stored(rule, ref[g], alpha[g]);
  if (scheme.vllm_w4afp8) {
    vllm_w4afp8_scales(row.stored.data(), groups, row.divide.data());
    for (int64_t g = 0; g < groups; ++g) row.stored[g] = round_scale(rule.type, clamp(row.divide[g], rule.low, rule.high));
    vllm_w4afp8_scales(row.stored.data(), groups, row.divide.data());
  } else {
    row.divide = row.stored;
  }
  for (int64_t g = 0; g < groups; ++g) row.set(g, deploy_one_level(rule, ref[g], alpha[g], row.stored[g], row.divide[g]));
}

}  // namespace

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

OneLevel WeightScheme::one_level() const {
  const ScaleBounds bounds = scale_bounds(*this);
  const ScaleType type = scale_dtype == at::kBFloat16 ? ScaleType::kBFloat16 : scale_dtype == at::kHalf ? ScaleType::kHalf : ScaleType::kFloat;
  return {type, bounds.low, bounds.high, static_cast<float>(format.qmax), code_low(format.grid, true)};
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
  at::Tensor amax = group_maxima(w, groups, group);
  check_finite(amax, w, name);
  if (columns_of_rows && scheme.format.layout == ScaleLayout::kChannel) columns_of_rows->all_reduce(amax, Reduce::kMax);
  const auto* amax_data = amax.const_data_ptr<float>();

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
  for (at::Tensor* made : {&result.ref, &result.global, &result.divisor})
    if (made->defined()) *made = made->to(w.device());
  return result;
}

EffectiveRow::EffectiveRow(int64_t groups)
    : stored(groups), divide(groups), multiply(groups), low(groups, -kInfinity), high(groups, kInfinity), slope(groups) {}

void effective_scales(const WeightScheme& scheme, const float* ref, const float* alpha, float global, float divisor, EffectiveRow& row) {
  const auto groups = static_cast<int64_t>(row.divide.size());
  const bool two_level = scheme.format.layout == ScaleLayout::kTwoLevelBlock;
  const auto qmax = static_cast<float>(scheme.format.qmax);
  if (scheme.rules == Rules::kDeploy && !two_level) return deploy_one_level_row(scheme, ref, alpha, row);
  if (scheme.rules == Rules::kDeploy)
    for (int64_t g = 0; g < groups; ++g) row.set(g, deploy_two_level(ref[g], alpha[g], global, divisor));
  else if (two_level)
    for (int64_t g = 0; g < groups; ++g) row.set(g, peer_two_level(scheme.rules, ref[g], alpha[g], global));
  else
    for (int64_t g = 0; g < groups; ++g) row.set(g, peer_one_level(scheme.rules, qmax, ref[g], alpha[g]));
}

float nvfp4_divisor(float amax) { return amax > 0 ? nvfp4_divisor_of(amax / kTwoLevelSpan) : kTwoLevelSpan; }

void vllm_w4afp8_scales(const float* stored, int64_t groups, float* deployed) {
  float largest = 0.0f;
  for (int64_t g = 0; g < groups; ++g) largest = std::max(largest, stored[g]);
  const float c = largest / numeric::kE4M3Max;
  for (int64_t g = 0; g < groups; ++g) deployed[g] = vllm_w4afp8_scale(stored[g], c);
}

}  // namespace scalewright
