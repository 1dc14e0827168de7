// Whether this build has CUDA kernels (CMake option SCALEWRIGHT_CUDA).
#pragma once
#include <ATen/core/Tensor.h>

namespace scalewright {

#if defined(SCALEWRIGHT_CUDA)
inline constexpr bool kCudaBuild = true;
#else
inline constexpr bool kCudaBuild = false;   // code under `if constexpr (kCudaBuild)` is checked, but nothing of it is linked
#endif

/// Whether our own kernels compute on the device of `t`; where not, operations are composed of ATen's.
inline bool has_kernels(const at::Tensor& t) { return t.is_cpu() || (kCudaBuild && t.is_cuda()); }

}  // namespace scalewright
