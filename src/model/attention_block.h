// Self-attention with grouped queries, optional per-head RMSNorm of q and k, and rotary positions.
#pragma once
#include <memory>
#include <vector>

#include "model/config.h"
#include "model/projection.h"
#include "model/token_layout.h"
#include "ops/rope.h"

namespace scalewright {

/// Keys and values of one layer during generation: [B, C, Hkv, D] with capacity C.
struct LayerCache {
  at::Tensor& k;
  at::Tensor& v;
};

class AttentionBlock {
 public:
  AttentionBlock(const ModelConfig& config, const Mesh& mesh, std::unique_ptr<Projection> qkv, std::unique_ptr<Projection> o, at::Tensor q_norm, at::Tensor k_norm,
                 const Compute& compute);

  /// This rank's tokens x [t,H] -> [t,H]; `rope` is for the tokens that projections give: all of its tp ranks [T], or with
  /// compute.deterministic its own [t]. With `fill` (one rank), document b's keys and values become row b of the cache.
  at::Tensor forward(const at::Tensor& x_tH, const LayoutPtr& layout, const RopeTable& rope, Mode mode, LayerCache* fill);
  /// One token a sequence: x [B,H]; `lengths[b]` positions are cached already; the new one is written behind them.
  at::Tensor step(const at::Tensor& x_BH, const std::vector<int64_t>& lengths, const RopeTable& rope, Mode mode, LayerCache cache);
  void collect(std::vector<Projection*>& projections);

 private:
  struct Heads {
    at::Tensor q, k, v;  // [T, heads, D]
  };
  Heads project(const at::Tensor& x_tH, const RopeTable& rope, Mode mode, const LayoutPtr& layout);
  at::Tensor all_keys(const at::Tensor& x, const TokenLayout& layout) const;
  at::Tensor whole_heads(const Heads& own, const TokenLayout& layout) const;

  const Mesh& mesh_;
  int64_t heads_, kv_heads_, head_dim_;
  double eps_, scale_;
  std::unique_ptr<Projection> qkv_, o_;
  at::Tensor q_norm_, k_norm_;
  Compute compute_;
};

}  // namespace scalewright
