// The two feed-forward blocks: dense SwiGLU, and a mixture of SwiGLU experts.
#pragma once
#include <memory>

#include "model/projection.h"
#include "model/router.h"

namespace scalewright {

/// down(silu(gate x) * up x).
class DenseMlp {
 public:
  DenseMlp(std::unique_ptr<Projection> gate_up, std::unique_ptr<Projection> down);
  at::Tensor forward(const at::Tensor& x_TH, Mode mode);
  void collect(std::vector<Projection*>& projections);

 private:
  std::unique_ptr<Projection> gate_up_, down_;
};

/// Routed experts, tokens sorted by expert once, plus the shared expert where the model has one.
class MoeMlp {
 public:
  MoeMlp(Router router, std::unique_ptr<Projection> gate_up, std::unique_ptr<Projection> down, std::unique_ptr<DenseMlp> shared);
  at::Tensor forward(const at::Tensor& x_TH, Mode mode);
  void collect(std::vector<Projection*>& projections);

 private:
  Router router_;
  std::unique_ptr<Projection> gate_up_, down_;
  std::unique_ptr<DenseMlp> shared_;
};

}  // namespace scalewright
