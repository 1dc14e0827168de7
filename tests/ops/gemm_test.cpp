#include "ops/gemm.h"

#include "base/error.h"
#include "ops/block_gemm.h"
#include "support.h"

namespace scalewright {
namespace {

Compute compute_of(at::ScalarType dtype, bool deterministic) { return {dtype, at::kCPU, deterministic}; }

struct Shape {
  int64_t m, n, k;
};
// Below, at and above the register blocks (6, 12 rows; 8, 16 columns), the tiles (192 by 128) and the K block (64).
const std::vector<Shape> kShapes = {{1, 1, 1},      {7, 5, 3},       {6, 16, 64},  {13, 17, 65},
                                    {192, 128, 64}, {193, 129, 200}, {3, 300, 128}};

TEST(Matmul, EqualsAtenInFloat64ForAllTransposes) {
  for (bool deterministic : {false, true})
    for (const Shape& s : kShapes)
      for (auto ta : {Transpose::kNo, Transpose::kYes})
        for (auto tb : {Transpose::kNo, Transpose::kYes}) {
          const at::Tensor a = ta == Transpose::kNo ? random({s.m, s.k}, 1) : random({s.k, s.m}, 1);
          const at::Tensor b = tb == Transpose::kNo ? random({s.k, s.n}, 2) : random({s.n, s.k}, 2);
          const at::Tensor want = at::matmul(ta == Transpose::kNo ? a : a.t(), tb == Transpose::kNo ? b : b.t());
          // 200 products of order 1 in float64
          EXPECT_LT(max_difference(matmul(compute_of(at::kDouble, deterministic), a, ta, b, tb), want), 1e-12);
        }
}

TEST(Matmul, TakesAnyStrides) {
  const at::Tensor a = random({20, 3, 30}, 1).select(1, 1), b = random({30, 40}, 2).slice(1, 0, 40, 2);
  for (bool deterministic : {false, true})
    EXPECT_LT(max_difference(matmul(compute_of(at::kDouble, deterministic), a, Transpose::kNo, b, Transpose::kNo),
                             at::matmul(a.clone(), b.clone())),
              1e-12);
}

TEST(Matmul, Bf16IsTheExactProductRounded) {
  const at::Tensor a = random({70, 200}, 1, at::kBFloat16), b = random({50, 200}, 2, at::kBFloat16);
  const at::Tensor exact = at::matmul(a.to(at::kDouble), b.to(at::kDouble).t());
  for (bool deterministic : {false, true}) {
    const at::Tensor y = matmul_nt(compute_of(at::kBFloat16, deterministic), a, b);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_LE(bf16_steps(y, exact), 0.51);  // half a step by rounding, a little more by float32 sums
    EXPECT_LE(bf16_steps(matmul_tn(compute_of(at::kBFloat16, deterministic), a, random({70, 40}, 3, at::kBFloat16)),
                         at::matmul(a.to(at::kDouble).t(), random({70, 40}, 3, at::kBFloat16).to(at::kDouble))),
              0.51);
  }
}

TEST(Matmul, EmptyOperands) {
  for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (bool deterministic : {false, true}) {
      const Compute c = compute_of(dtype, deterministic);
      EXPECT_EQ(matmul_nt(c, random({0, 8}, 1, dtype), random({4, 8}, 2, dtype)).sizes(), at::IntArrayRef({0, 4}));
      EXPECT_EQ(
          max_difference(matmul_tn(c, random({0, 3}, 1, dtype), random({0, 5}, 2, dtype)), at::zeros({3, 5}, dtype)),
          0);
    }
}

TEST(Matmul, WritesIntoRowsOfALargerTensor) {
  for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (bool deterministic : {false, true}) {
      const at::Tensor a = random({5, 70}, 1, dtype), b = random({33, 70}, 2, dtype);
      at::Tensor all = at::full({9, 33}, 7.0, dtype), rows = all.narrow(0, 3, 5);
      matmul_out(compute_of(dtype, deterministic), a, Transpose::kNo, b, Transpose::kYes, rows);
      EXPECT_TRUE(at::equal(all.narrow(0, 3, 5), matmul_nt(compute_of(dtype, deterministic), a, b)));
      EXPECT_TRUE(at::equal(all.narrow(0, 0, 3), at::full({3, 33}, 7.0, dtype)));
      EXPECT_TRUE(at::equal(all.narrow(0, 8, 1), at::full({1, 33}, 7.0, dtype)));
    }
}

TEST(Matmul, RejectsShapesThatDoNotFit) { EXPECT_THROW(matmul_nt({}, at::ones({2, 3}), at::ones({2, 4})), BugError); }

TEST(Matmul, GradientsOfBothOperands) {
  for (bool deterministic : {false, true})
    for (auto ta : {Transpose::kNo, Transpose::kYes})
      for (auto tb : {Transpose::kNo, Transpose::kYes})
        expect_gradients_match_differences(
            [&](const std::vector<at::Tensor>& x) {
              return matmul(compute_of(at::kDouble, deterministic), x[0], ta, x[1], tb);
            },
            {ta == Transpose::kNo ? random({3, 5}, 1) : random({5, 3}, 1),
             tb == Transpose::kNo ? random({5, 4}, 2) : random({4, 5}, 2)});
}

class DeterministicMatmul : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  const Compute compute = compute_of(GetParam(), true);
  const at::Tensor x = random({150, 200}, 1, GetParam()), w = random({90, 200}, 2, GetParam());
};
INSTANTIATE_TEST_SUITE_P(Types, DeterministicMatmul, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(DeterministicMatmul, RowsDoNotDependOnTheirNumber) {
  const at::Tensor all = matmul_nt(compute, x, w);
  for (int64_t rows : {1, 2, 5, 6, 7, 64, 97, 149})
    EXPECT_TRUE(at::equal(matmul_nt(compute, x.narrow(0, 0, rows), w), all.narrow(0, 0, rows))) << rows;
}

TEST_P(DeterministicMatmul, RowsFollowAPermutation) {
  const at::Tensor order = at::randperm(150, at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{3}),
                                        at::TensorOptions().dtype(at::kLong));
  EXPECT_TRUE(
      at::equal(matmul_nt(compute, x.index_select(0, order), w), matmul_nt(compute, x, w).index_select(0, order)));
}

TEST_P(DeterministicMatmul, ColumnsMayBeSplit) {
  const at::Tensor all = matmul_nt(compute, x, w);
  EXPECT_TRUE(at::equal(matmul_nt(compute, x, w.narrow(0, 37, 21)), all.narrow(1, 37, 21)));
}

TEST_P(DeterministicMatmul, ThreadsAndStorageOrderDoNotMatter) {
  const at::Tensor one = with_threads(1, [&] { return matmul_nt(compute, x, w); });
  EXPECT_TRUE(at::equal(with_threads(3, [&] { return matmul_nt(compute, x, w); }), one));
  EXPECT_TRUE(at::equal(matmul_nn(compute, x, w.t().contiguous()), one));
  EXPECT_TRUE(at::equal(matmul_tn(compute, x.t().contiguous(), w.t().contiguous()), one));
}

TEST_P(DeterministicMatmul, PartialSumsOfKBlocksAddUpInOrder) {
  if (GetParam() == at::kBFloat16) return;  // partial sums would be rounded
  at::Tensor sum;
  for (int64_t k = 0; k < 200; k += kDeterministicBlockK) {
    const int64_t depth = std::min(kDeterministicBlockK, 200 - k);
    const at::Tensor part = matmul_nt(compute, x.narrow(1, k, depth), w.narrow(1, k, depth));
    sum = sum.defined() ? sum + part : part;
  }
  EXPECT_TRUE(at::equal(sum, matmul_nt(compute, x, w)));
}

template <typename T>
std::vector<T> block_product(const BlockKernels& kernels, const at::Tensor& a, const at::Tensor& b, int64_t m,
                             int64_t n, int64_t k) {
  std::vector<T> c(static_cast<std::size_t>(m * n), T{1});
  kernels.of<T>()(m, n, k, a.const_data_ptr<T>(), k, 1, b.const_data_ptr<T>(), n, c.data(), n, true);
  return c;
}

TEST(BlockGemm, EveryTargetGivesTheSameBits) {
  for (int64_t m = 1; m < 26; m += 3) {
    const at::Tensor a = random({m, 40}, 1), b = random({40, 48}, 2);
    const auto want64 = block_product<double>(block_kernels().back(), a, b, m, 48, 40);
    const auto want32 = block_product<float>(block_kernels().back(), a.to(at::kFloat), b.to(at::kFloat), m, 48, 40);
    for (const BlockKernels& kernels : block_kernels()) {
      EXPECT_EQ(block_product<double>(kernels, a, b, m, 48, 40), want64) << kernels.target;
      EXPECT_EQ(block_product<float>(kernels, a.to(at::kFloat), b.to(at::kFloat), m, 48, 40), want32) << kernels.target;
    }
  }
}

}  // namespace
}  // namespace scalewright
