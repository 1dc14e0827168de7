// AdamW's update, one pass over the elements.
#pragma once
#include <ATen/core/Tensor.h>

#include "train/adamw_math.h"

namespace scalewright {

/// All of one dtype (float32 or float64), contiguous, of equal size, on the CPU. An element's result depends on nothing but its own values.
void adamw_update_cpu(const AdamWUpdate& update, at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v);

namespace cuda {
/// The same on a GPU, queued on the current stream; the same bits.
void adamw_update(const AdamWUpdate& update, at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v);
}  // namespace cuda

}  // namespace scalewright
