// The register-blocked matrix product of small blocks in cache, on which attention and deterministic GEMM are built.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace scalewright {

/// Rows of B and C are padded to a multiple of this many bytes (one AVX-512 register, two AVX2 registers).
inline constexpr int64_t kBlockBytes = 64;
template <typename T>
inline constexpr int64_t kBlockLanes = kBlockBytes / static_cast<int64_t>(sizeof(T));
template <typename T>
constexpr int64_t pad_lanes(int64_t n) {
  return (n + kBlockLanes<T> - 1) / kBlockLanes<T> * kBlockLanes<T>;
}

/// C[m][n] = (accumulate ? C[m][n] : 0) + sum over k of A(m,k) * B[k][n], with A(m,k) = a[m*a_row + k*a_col]; `n` is a
/// multiple of kBlockLanes. The sum starts at 0 and runs over k in ascending order by fused multiply-adds, then is
/// added to C: the bits of a row depend on nothing but its own inputs and are the same on every target.
template <typename T>
using BlockGemm = void (*)(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b,
                           int64_t b_row, T* c, int64_t c_row, bool accumulate);

struct BlockKernels {
  std::string_view target;  // "avx512", "avx2", "default"
  BlockGemm<float> f32;
  BlockGemm<double> f64;
  template <typename T>
  BlockGemm<T> of() const {
    if constexpr (sizeof(T) == sizeof(double))
      return f64;
    else
      return f32;
  }
};

/// What this CPU can run, widest first; the last one runs everywhere (without FMA instructions slowly).
std::span<const BlockKernels> block_kernels();

}  // namespace scalewright
