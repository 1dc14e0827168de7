// Functions that run on the host and on a GPU: one source of arithmetic for the CPU kernels and the CUDA kernels. g++ sees an inline function.
#pragma once

#if defined(__CUDACC__)
#define SW_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SW_HOST_DEVICE inline __attribute__((always_inline))
#endif
