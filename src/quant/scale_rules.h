// One group's scale, for host and device: from a reference times alpha (weights) or from a token's own maxima (activations) to what
// divides and what multiplies. The rules in which the numerics differ; the loops over rows are in weight_scales.cpp,
// activation_loops.cpp and quantize_cuda.cu.
#pragma once
#include "quant/format.h"
#include "quant/numeric.h"

namespace scalewright {

/// The rule sets behind the two public numerics. AngelSlim quantizes dense linears by PyTorch code (eager) and experts by Triton
/// kernels, which differ in ties, in bounds and in the dtype of the references; we offer its eager rules, and keep the kernels'
/// so that known answers can be compared.
enum class Rules { kDeploy, kPeerEager, kPeerTriton };

inline constexpr float kAlphaLow = 0.25f, kAlphaHigh = 4.0f;

/// alpha within its bounds; `pass`: whether the gradient reaches it (the peer's eager clamp and ours pass AT a bound).
struct ClampedAlpha {
  float value;
  bool pass;
};
SW_HOST_DEVICE ClampedAlpha clamped_alpha(Rules rules, float alpha) {
  const float value = numeric::clamp(alpha, kAlphaLow, kAlphaHigh);
  const bool strict = rules == Rules::kPeerTriton;
  return {value, strict ? alpha > kAlphaLow && alpha < kAlphaHigh : alpha >= kAlphaLow && alpha <= kAlphaHigh};
}

/// The effective scale of one group.
struct GroupScale {
  float stored;             // as written to a checkpoint: the E4M3 value, or the scale rounded to its dtype
  float divide, multiply;   // quotient x / divide, value q * multiply
  float low, high;          // quotients in range of the straight-through estimator
  double slope;             // d(multiply)/d(what is learned), but for the reference's factor 1/sqrt(n qmax)
};

namespace scale_rules {

inline constexpr float kTwoLevelSpan = 2688.0f;                // 6 * 448: amax over the global
inline constexpr float kLargest = 0x1.fep127f;                 // the largest bfloat16: no dequantized value may exceed it
inline constexpr float kLeastGlobal = 0x1p-117f;               // times the least block scale 2^-9 it is the least normal float32
inline constexpr float kLargestGlobal = kLargest / kTwoLevelSpan * (1.0f - 0x1p-20f);
inline constexpr float kLeastNormal = 0x1p-126f;
inline constexpr float kPeerFloor = 1e-10f, kPeerRefFloor = 1e-12f;
// E4M3 rounds up to 448 from 448 to 464, and to at least 2^-9 from 2^-10: beyond, a block scale is clipped.
inline constexpr float kBlockClipHigh = 464.0f, kBlockClipLow = 0x1p-10f;
// The own maximum of a row is in range by definition; this absorbs the rounding of amax / qmax.
inline constexpr float kRangeSlack = 1.0f + 0x1p-16f;
inline constexpr float kInfinity = __builtin_huge_valf();

/// The dtypes in which group and channel scales are stored.
enum class ScaleType { kFloat, kBFloat16, kHalf };
SW_HOST_DEVICE float round_scale(ScaleType type, float x) {
  if (type == ScaleType::kFloat || x != x) return x;
  return type == ScaleType::kBFloat16 ? numeric::round_bf16(x) : numeric::round_half(x);
}

/// What the one-level deploy rule knows of a weight: bounds of a stored scale, and the largest and least code.
struct OneLevel {
  ScaleType type;
  float low, high;
  float qmax, code_low;
};

// Weights. `ref` times the clamped `alpha` is the wanted scale.

SW_HOST_DEVICE GroupScale deploy_two_level(float ref, float alpha, float global, float divisor) {
  const ClampedAlpha a = clamped_alpha(Rules::kDeploy, alpha);
  const float raw = ref * a.value;
  const float block = numeric::round_e4m3(numeric::clamp(raw, numeric::kE4M3Least, numeric::kE4M3Max));
  const float divide = block / divisor;   // what compressed-tensors' compressor divides by; a loader multiplies by block * global
  const float high = numeric::larger(raw, numeric::kE4M3Least) * global / divide * numeric::kE2M1Max * kRangeSlack;
  return {block, divide, block * global, -high, high, a.pass && raw > kBlockClipLow && raw < kBlockClipHigh ? static_cast<double>(global) * ref : 0.0};
}

/// The stored scale alone.
SW_HOST_DEVICE float deploy_stored(const OneLevel& rule, float ref, float alpha) {
  return round_scale(rule.type, numeric::clamp(ref * clamped_alpha(Rules::kDeploy, alpha).value, rule.low, rule.high));
}

/// `effective`: what a loader multiplies by, which is the stored scale but for vLLM's W4AFP8 kernels.
SW_HOST_DEVICE GroupScale deploy_one_level(const OneLevel& rule, float ref, float alpha, float stored, float effective) {
  const ClampedAlpha a = clamped_alpha(Rules::kDeploy, alpha);
  const float raw = ref * a.value;
  const float unrounded = raw / effective * kRangeSlack;
  return {stored, effective, effective, unrounded * rule.code_low, unrounded * rule.qmax, a.pass && raw >= rule.low && raw <= rule.high ? ref : 0.0};
}

/// A group scale as vLLM's W4AFP8 kernels use it, never zero; c = (the largest stored scale of the row) / 448.
SW_HOST_DEVICE float vllm_w4afp8_scale(float stored, float c) {
  const float eighth = numeric::round_e4m3(numeric::round_e4m3(stored / c) / 8.0f);
  return 8.0f * c * numeric::larger(eighth, numeric::kE4M3Least);
}

SW_HOST_DEVICE GroupScale peer_two_level(Rules rules, float ref, float alpha, float global) {
  const bool strict = rules == Rules::kPeerTriton;
  const ClampedAlpha a = clamped_alpha(rules, alpha);
  const float raw = ref * a.value;
  const float block = numeric::round_e4m3(numeric::clamp(raw, kPeerRefFloor, numeric::kE4M3Max));
  const float unfloored = global * block;
  const float effective = numeric::larger(unfloored, kPeerFloor);
  const bool in_scale = strict ? raw > kPeerRefFloor && raw < numeric::kE4M3Max && unfloored > kPeerFloor
                               : raw >= kPeerRefFloor && raw <= numeric::kE4M3Max && unfloored >= kPeerFloor;
  return {block, effective, effective, -numeric::kE2M1Max, numeric::kE2M1Max, a.pass && in_scale ? static_cast<double>(global) * ref : 0.0};
}

SW_HOST_DEVICE GroupScale peer_one_level(Rules rules, float qmax, float ref, float alpha) {
  const ClampedAlpha a = clamped_alpha(rules, alpha);
  const float raw = ref * a.value;
  const float scale = numeric::larger(raw, kPeerRefFloor);
  return {scale, scale, scale, -qmax, qmax, a.pass && (rules != Rules::kPeerTriton || raw > kPeerRefFloor) ? ref : 0.0};
}

// Activations. slope = d(effective scale)/dS.

SW_HOST_DEVICE GroupScale token_scale(bool deploy, float qmax, float amax) {
  const float scale = numeric::larger(amax / qmax, deploy ? kLeastNormal : kPeerFloor);   // in this order NaN stays
  const float high = deploy ? kInfinity : qmax;
  return {scale, scale, scale, -high, high, 0.0};
}

/// The block scale follows S inversely, straight through its rounding, so little is left of it.
SW_HOST_DEVICE GroupScale peer_block(float amax, float global) {
  const float raw = amax > 0 ? (amax / numeric::kE2M1Max) / global : 1.0f;
  const float block = numeric::round_e4m3(numeric::clamp(raw, kPeerRefFloor, numeric::kE4M3Max));
  const float unfloored = global * block;
  const float scale = numeric::larger(unfloored, kPeerFloor);
  const bool follows = raw >= kPeerRefFloor && raw <= numeric::kE4M3Max && amax > 0;
  return {block, scale, scale, -numeric::kE2M1Max, numeric::kE2M1Max,
          unfloored >= kPeerFloor ? static_cast<double>(block) - (follows ? raw : 0.0) : 0.0};
}

SW_HOST_DEVICE GroupScale deploy_block(float amax, float global) {
  const float raw = (amax / numeric::kE2M1Max) / global;
  const float block = numeric::round_e4m3(raw);
  const bool vanishes = block == 0.0f;   // engines write zeros where the block scale underflows
  const bool clips = raw > numeric::kE4M3Max;
  const float multiply = block * global, high = clips ? numeric::kE2M1Max : kInfinity;
  return {block, vanishes ? kInfinity : multiply, multiply, -high, high, vanishes ? 0.0 : static_cast<double>(block) - (clips ? 0.0 : raw)};
}

/// G = fl(1/S), with S held where neither G nor a block's effective scale overflows or is denormal.
SW_HOST_DEVICE float nvfp4_divisor_of(float multiplier) { return 1.0f / numeric::clamp(multiplier, kLeastGlobal, kLargestGlobal); }

/// The multiplier of an NVFP4 activation from its reference and alpha. Deploy: the reciprocal of the exported divisor, 2688 where only
/// zeros were seen.
SW_HOST_DEVICE float activation_global(bool deploy, float ref, float alpha) {
  const float global = ref * numeric::clamp(alpha, kAlphaLow, kAlphaHigh);
  if (!deploy) return global;
  return 1.0f / (global == 0.0f ? kTwoLevelSpan : nvfp4_divisor_of(global));
}

}  // namespace scale_rules
}  // namespace scalewright
