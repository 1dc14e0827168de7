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
  at::Tensor forward(const at::Tensor& x_tH, Mode mode, const LayoutPtr& layout);
  void collect(std::vector<Projection*>& projections);

 private:
  std::unique_ptr<Projection> gate_up_, down_;
};

/// Routed experts, tokens sorted by expert once, plus the shared expert where the model has one. Under expert parallelism every token
/// travels to the ranks of its experts and back.
class MoeMlp {
 public:
  MoeMlp(Router router, const Mesh& mesh, std::unique_ptr<Projection> gate_up, std::unique_ptr<Projection> down, std::unique_ptr<DenseMlp> shared);
  at::Tensor forward(const at::Tensor& x_tH, Mode mode, const LayoutPtr& layout);
  void collect(std::vector<Projection*>& projections);

 private:
  at::Tensor experts(const at::Tensor& sorted, const RoutedRows& rows, Mode mode, const LayoutPtr& layout);
  at::Tensor remote_experts(const at::Tensor& sorted, const RoutedRows& rows, Mode mode, const LayoutPtr& layout);

  Router router_;
  const Mesh& mesh_;
  std::unique_ptr<Projection> gate_up_, down_;
  std::unique_ptr<DenseMlp> shared_;
};

}  // namespace scalewright
