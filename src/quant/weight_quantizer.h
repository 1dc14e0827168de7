// The fake quantizer of a stacked weight with one learnable alpha per scale: scale = ref * clamp(alpha, 0.25, 4).
#pragma once
#include "comm/group.h"
#include "ops/compute.h"
#include "quant/format.h"

namespace scalewright {

struct WeightScheme;

/// What an exporter writes for one stacked weight: codes and the scales exactly as a loader multiplies by them.
struct QuantizedWeight {
  at::Tensor codes;         // [E,N,K] uint8: E2M1 code (sign<<3 | index), E4M3 byte; int8: the integer itself (int4, int8 grids)
  at::Tensor scale;         // [E,N,K/g] float8_e4m3fn (two-level), or scale_dtype (others)
  at::Tensor global_scale;  // [E] float32 DIVISOR G (two-level), else undefined
};

/// Where a weight is a part of a tensor that several ranks hold (tensor parallelism).
struct WeightPart {
  const Group* holders = nullptr;   // of all parts; nullptr: the whole tensor is here
  const Group* columns = nullptr;   // of the other columns of the same rows; nullptr: none
  int64_t whole_columns = 0;        // when the columns are cut (at group borders): how many there are in all
};

/// One stacked weight w [E,N,K]: E experts (1 for dense), fused shards (q|k|v, gate|up) stacked along N so that they share the
/// two-level global. The weight itself is not held; every call gets it (bf16, float32 or float64 holding values that float32 holds
/// exactly). alpha and ref are [E,N,K/g] (K/g = 1 for channels).
class WeightQuantizer {
 public:
  /// Reference scales by min-max. `scale_dtype` = dtype in which group and channel scales are stored (bf16 models: bfloat16).
  /// Throws DataError when K is not a multiple of the group, or the weight has non-finite values; `name` is used in messages.
  WeightQuantizer(const std::string& name, const TensorFormat& format, Numerics numerics, const at::Tensor& w_ENK, const Compute& compute,
                  at::ScalarType scale_dtype, const WeightPart& part = {});

  const TensorFormat& format() const { return format_; }
  Numerics numerics() const { return numerics_; }
  at::Tensor& alpha() { return alpha_; }              // leaf in compute.accurate(), requires_grad
  const at::Tensor& alpha() const { return alpha_; }
  const at::Tensor& ref() const { return ref_; }      // float32 reference scales (two-level: relative to the global S)
  const at::Tensor& global() const { return global_; }// float32 [E]: multiplier S as used (deploy: fl(1/G)); undefined for one-level

  /// w4afp8 as vLLM serves it: group scales re-rounded to E4M3 per row, 8c * E4M3(E4M3(s/c)/8) with c = max(s)/448 (deploy numerics).
  /// The re-rounded scales are then also what is stored, so that other loaders multiply by nearly the same. Off by default.
  void set_vllm_w4afp8_rounding(bool on) { vllm_w4afp8_ = on; }

  /// The fake-quantized weight [E,N,K] in `out_dtype` (computed in float32; deploy: exactly code * loader's scale).
  at::Tensor fake_quantize(const at::Tensor& w_ENK, at::ScalarType out_dtype) const;

  /// Adds to d_alpha [E,N,K/g] (float64 or float32) the contribution of dW of rows row_begin.. of expert e: `dw` [rows,K] is the
  /// gradient with respect to the fake-quantized weight. d_alpha = sum(dw * dval) * ref / sqrt(n*qmax), n elements a scale.
  void add_alpha_gradient(const at::Tensor& w_ENK, int64_t expert, int64_t row_begin, const at::Tensor& dw, at::Tensor& d_alpha) const;

  /// Codes and stored scales (deploy numerics). Throws BugError under mcore_qad.
  QuantizedWeight quantize(const at::Tensor& w_ENK) const;

 private:
  WeightScheme scheme() const;

  std::string name_;
  TensorFormat format_;
  Numerics numerics_;
  Compute compute_;
  at::ScalarType scale_dtype_;
  int64_t whole_columns_;
  at::Tensor alpha_, ref_, global_, divisor_;   // divisor_: G [E], deploy two-level
  bool vllm_w4afp8_ = false;
};

/// What a loader multiplies: code*(s*fl(1/G)) or code*s in float32 -> [E,N,K] float32, from the exported tensors alone.
/// `vllm_w4afp8`: with group scales as that engine re-rounds them at load.
at::Tensor dequantize(const QuantizedWeight& q, const TensorFormat& format, bool vllm_w4afp8 = false);

}  // namespace scalewright
