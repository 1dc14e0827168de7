// SwiGLU: silu(gate) * up over a stacked [gate | up] projection.
#pragma once
#include "ops/compute.h"

namespace scalewright {

/// [T, 2I] (gate first) -> [T, I]; differentiable. Computed in float32 for bf16 input.
at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace scalewright
