// The block product compiled for three targets. Functions of the AVX namespaces may only be reached through
// block_kernels().
#include "ops/block_gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SW_INLINE inline __attribute__((always_inline))

namespace scalewright {
namespace {

namespace portable {
template <typename T>
struct Vector {
  typedef T type __attribute__((vector_size(16)));
};
template <typename T>
SW_INLINE typename Vector<T>::type load_vector(const T* p) {
  typename Vector<T>::type v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename T>
SW_INLINE typename Vector<T>::type broadcast(T x) {
  typename Vector<T>::type v;
  for (std::size_t i = 0; i < sizeof v / sizeof x; ++i) v[i] = x;
  return v;
}
template <typename T, typename V>
SW_INLINE void store_vector(T* p, const V& v) {
  std::memcpy(p, &v, sizeof v);
}
template <typename V>
SW_INLINE V fused(const V& a, const V& b, const V& c) {
  V out;
  for (std::size_t i = 0; i < sizeof(V) / sizeof(a[0]); ++i) out[i] = std::fma(a[i], b[i], c[i]);
  return out;
}
#define SW_VECTOR_BYTES 16
#define SW_ROWS 2
#define SW_VECTORS 4
#include "ops/block_gemm_kernel.inc"
#undef SW_VECTOR_BYTES
#undef SW_ROWS
#undef SW_VECTORS
}  // namespace portable

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
template <typename T>
struct Vector;
template <>
struct Vector<float> {
  using type = __m256;
};
SW_INLINE __m256 load_vector(const float* x) { return _mm256_loadu_ps(x); }
SW_INLINE __m256 broadcast(float x) { return _mm256_set1_ps(x); }
SW_INLINE void store_vector(float* x, __m256 v) { _mm256_storeu_ps(x, v); }
SW_INLINE __m256 fused(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
template <>
struct Vector<double> {
  using type = __m256d;
};
SW_INLINE __m256d load_vector(const double* x) { return _mm256_loadu_pd(x); }
SW_INLINE __m256d broadcast(double x) { return _mm256_set1_pd(x); }
SW_INLINE void store_vector(double* x, __m256d v) { _mm256_storeu_pd(x, v); }
SW_INLINE __m256d fused(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
#define SW_VECTOR_BYTES 32
#define SW_ROWS 6
#define SW_VECTORS 2
#include "ops/block_gemm_kernel.inc"
#undef SW_VECTOR_BYTES
#undef SW_ROWS
#undef SW_VECTORS
void gemm_f32(int64_t m, int64_t n, int64_t k, const float* a, int64_t ar, int64_t ac, const float* b, int64_t br,
              float* c, int64_t cr, bool add) {
  block_gemm<float>(m, n, k, a, ar, ac, b, br, c, cr, add);
}
void gemm_f64(int64_t m, int64_t n, int64_t k, const double* a, int64_t ar, int64_t ac, const double* b, int64_t br,
              double* c, int64_t cr, bool add) {
  block_gemm<double>(m, n, k, a, ar, ac, b, br, c, cr, add);
}
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,fma")
namespace avx512 {
template <typename T>
struct Vector;
template <>
struct Vector<float> {
  using type = __m512;
};
SW_INLINE __m512 load_vector(const float* x) { return _mm512_loadu_ps(x); }
SW_INLINE __m512 broadcast(float x) { return _mm512_set1_ps(x); }
SW_INLINE void store_vector(float* x, __m512 v) { _mm512_storeu_ps(x, v); }
SW_INLINE __m512 fused(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
template <>
struct Vector<double> {
  using type = __m512d;
};
SW_INLINE __m512d load_vector(const double* x) { return _mm512_loadu_pd(x); }
SW_INLINE __m512d broadcast(double x) { return _mm512_set1_pd(x); }
SW_INLINE void store_vector(double* x, __m512d v) { _mm512_storeu_pd(x, v); }
SW_INLINE __m512d fused(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
#define SW_VECTOR_BYTES 64
#define SW_ROWS 12
#define SW_VECTORS 1
#include "ops/block_gemm_kernel.inc"
#undef SW_VECTOR_BYTES
#undef SW_ROWS
#undef SW_VECTORS
void gemm_f32(int64_t m, int64_t n, int64_t k, const float* a, int64_t ar, int64_t ac, const float* b, int64_t br,
              float* c, int64_t cr, bool add) {
  block_gemm<float>(m, n, k, a, ar, ac, b, br, c, cr, add);
}
void gemm_f64(int64_t m, int64_t n, int64_t k, const double* a, int64_t ar, int64_t ac, const double* b, int64_t br,
              double* c, int64_t cr, bool add) {
  block_gemm<double>(m, n, k, a, ar, ac, b, br, c, cr, add);
}
}  // namespace avx512
#pragma GCC pop_options
#endif

}  // namespace

std::span<const BlockKernels> block_kernels() {
  static const BlockKernels all[] = {
#if defined(__x86_64__)
    {"avx512", avx512::gemm_f32, avx512::gemm_f64},
    {"avx2", avx2::gemm_f32, avx2::gemm_f64},
#endif
    {"default", portable::block_gemm<float>, portable::block_gemm<double>},
  };
  std::span<const BlockKernels> usable(all);
#if defined(__x86_64__)
  const bool fma = __builtin_cpu_supports("fma");
  if (!fma || !__builtin_cpu_supports("avx2")) return usable.last(1);
  if (!__builtin_cpu_supports("avx512f")) return usable.last(2);
#endif
  return usable;
}

}  // namespace scalewright
