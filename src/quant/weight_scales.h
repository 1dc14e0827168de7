// From a weight to its reference scales, and from reference times alpha to what divides and what multiplies: the rules in which
// the numerics differ.
#pragma once
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "quant/format.h"
#include "quant/kernels.h"
#include "quant/scale_rules.h"

namespace scalewright {

/// Reference scales of a stacked weight [E,N,K].
struct ReferenceScales {
  at::Tensor ref;      // float32 [E,N,K/g]; two-level: relative to the global
  at::Tensor global;   // float32 [E], multiplier S (deploy: fl(1/G)); undefined for one level
  at::Tensor divisor;  // float32 [E], G = fl(1/S) (deploy, two-level), else undefined
};

/// Everything that the rows of one weight share.
struct WeightScheme {
  TensorFormat format;
  Rules rules;
  at::ScalarType scale_dtype;   // of stored group and channel scales (deploy)
  bool vllm_w4afp8 = false;
  int64_t whole_columns = 0;    // where other ranks hold more columns of the same rows: how many there are in all

  int64_t group(int64_t columns) const { return format.group ? format.group : columns; }
  int64_t groups(int64_t columns) const { return format.group ? columns / format.group : 1; }
  /// Elements that share a scale, on all ranks.
  int64_t elements(int64_t columns) const { return group(std::max(columns, whole_columns)); }
  Rounder rounder() const;
  /// The one-level deploy rule's constants.
  scale_rules::OneLevel one_level() const;
};

/// Min-max references; with `holders`, of the tensor whose parts those ranks hold: they share the two-level globals and, when
/// scheme.whole_columns is set, the channel scales. Throws DataError naming `name` when K is not a multiple of the group or a value
/// is not finite.
ReferenceScales reference_scales(const WeightScheme& scheme, const at::Tensor& w_ENK, const std::string& name, const Group* holders = nullptr,
                                 const Group* columns = nullptr);

/// The effective scales of one row, in buffers that are reused from row to row.
struct EffectiveRow {
  explicit EffectiveRow(int64_t groups);
  std::vector<float> stored;             // as written to a checkpoint: the E4M3 value, or the scale rounded to its dtype
  std::vector<float> divide, multiply;   // quotient w / divide, value q * multiply
  std::vector<float> low, high;          // quotients in range of the straight-through estimator
  std::vector<double> slope;             // d(multiply)/d(alpha): 0 where alpha or the block scale is clipped
  void set(int64_t g, const GroupScale& scale) {
    stored[g] = scale.stored;
    divide[g] = scale.divide;
    multiply[g] = scale.multiply;
    low[g] = scale.low;
    high[g] = scale.high;
    slope[g] = scale.slope;
  }
  RowScales scales(int64_t group) const { return {divide.data(), multiply.data(), static_cast<int64_t>(divide.size()), group}; }
  RowRange range() const { return {low.data(), high.data()}; }
};

/// `ref`, `alpha`: one row's [groups]. `global`, `divisor`: of its expert (two-level), else unused.
void effective_scales(const WeightScheme& scheme, const float* ref, const float* alpha, float global, float divisor, EffectiveRow& row);

/// NVFP4: G = fl(1/S) for a global amax, with S held where neither G nor a block's effective scale overflows or is denormal; an
/// amax of zero gives 2688.
float nvfp4_divisor(float amax);
/// The same from a reference multiplier S.
using scale_rules::nvfp4_divisor_of;

/// The group scales of one row as vLLM's W4AFP8 kernels use them: 8c * E4M3(E4M3(s/c)/8), c = max(s)/448, never zero.
void vllm_w4afp8_scales(const float* stored, int64_t groups, float* deployed);

}  // namespace scalewright
