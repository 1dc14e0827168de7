// What the headers of CUDA launch functions mention: no CUDA and no torch header is needed to include them.
#pragma once

typedef struct CUstream_st* cudaStream_t;   // as in cuda_runtime_api.h

namespace scalewright::cuda {

/// Element types of the kernels' arrays.
enum class Element { kFloat64, kFloat32, kBFloat16 };

}  // namespace scalewright::cuda
