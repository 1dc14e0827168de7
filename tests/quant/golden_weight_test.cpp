// Weight quantizers against AngelSlim (eager and Triton) and against what compressed-tensors writes from our scales.
#include "golden.h"
#include "quant/weight_loops.h"
#include "quant/weight_quantizer.h"

namespace scalewright {
namespace {

using test::expect_close;
using test::expect_equal;
using test::Golden;
using test::parts;

// AngelSlim's gradient rescale returns (s - s*f) + s*f in its forward pass, which may be an ulp off s: one in s, another in the product.
constexpr int kRescaleUlps = 2;
// Sums of 8-bit formats cancel; the libraries add in float32 in an order of their own.
constexpr double kGradientTolerance = 5e-5;

/// A stacked weight of one expert, or of `experts` with the rows shared out.
at::Tensor stacked(const at::Tensor& w, int64_t experts = 1) { return w.reshape({experts, -1, w.size(-1)}); }

const TensorFormat& weight_format(const std::string& name) { return find_format(name).weight; }

/// The scale that AngelSlim's forward pass multiplies by; an ulp flips a code at an exact tie.
at::Tensor rescaled(const at::Tensor& s, const TensorFormat& format, int64_t columns) {
  const auto f = static_cast<float>(1.0 / std::sqrt(static_cast<double>(format.group ? format.group : columns) * format.qmax));
  return (s - s * f) + s * f;
}

TEST(GoldenWeight, AngelSlimEagerScalesAndValues) {
  const auto prefixes = Golden::get().prefixes("w/", "/as/");
  EXPECT_EQ(prefixes.size(), 36u);   // 9 weights, 4 formats
  for (const std::string& prefix : prefixes) {
    const at::Tensor w = stacked(Golden::get()["w/" + parts(prefix)[1] + "/weight"]);
    const WeightQuantizer q(prefix, weight_format(parts(prefix)[3]), Numerics::kMcoreQad, w, Compute{}, at::kBFloat16);
    expect_equal(q.ref(), Golden::get()[prefix + "/ref"], prefix + "/ref");
    const at::Tensor want = Golden::get()[prefix + "/dequant"];
    if (q.global().defined()) {
      expect_equal(q.fake_quantize(w, at::kFloat), want, prefix + "/dequant", kRescaleUlps);
    } else {
      const WeightScheme scheme{q.format(), Rules::kPeerEager, at::kBFloat16};
      const ReferenceScales scales{rescaled(q.ref(), q.format(), w.size(2)), {}, {}};
      expect_equal(fake_quantize_weight(scheme, scales, at::ones_like(q.ref()), w, at::kFloat), want, prefix + "/dequant");
    }
  }
}

TEST(GoldenWeight, AngelSlimTritonScalesAndValues) {
  const auto prefixes = Golden::get().prefixes("w/", "/as_triton/");
  EXPECT_EQ(prefixes.size(), 18u);
  for (const std::string& prefix : prefixes) {
    const at::Tensor w = stacked(Golden::get()["w/" + parts(prefix)[1] + "/weight"]);
    const WeightScheme scheme{weight_format(parts(prefix)[3]), Rules::kPeerTriton, at::kBFloat16};
    const ReferenceScales scales = reference_scales(scheme, w, prefix);
    expect_equal(scales.ref, Golden::get()[prefix + "/ref"], prefix + "/ref");
    if (scales.global.defined()) expect_equal(scales.global, Golden::get()[prefix + "/S"], prefix + "/S");
    const at::Tensor got = fake_quantize_weight(scheme, scales, at::ones_like(scales.ref), w, w.scalar_type());
    expect_equal(got, Golden::get()[prefix + "/dequant"], prefix + "/dequant");
  }
}

/// d(sum(output * upstream))/d(alpha).
at::Tensor alpha_gradient(const WeightScheme& scheme, const ReferenceScales& scales, const at::Tensor& alpha, const at::Tensor& w, const at::Tensor& upstream) {
  at::Tensor d_alpha = at::zeros(scales.ref.sizes(), at::kDouble);
  for (int64_t e = 0; e < w.size(0); ++e)
    for (int64_t row = 0; row < w.size(1); ++row)   // row by row: tiles must add up
      add_weight_alpha_gradient(scheme, scales, alpha, w, e, row, upstream[e].narrow(0, row, 1), d_alpha);
  return d_alpha;
}

TEST(GoldenWeight, GradientsOfBothPeers) {
  int64_t entries = 0;
  for (const std::string& prefix : Golden::get().prefixes("grad/", "/alpha_")) {
    const auto part = parts(prefix);
    const bool triton = part[2] == "as_triton";
    const at::Tensor w = stacked(Golden::get()["w/" + part[1] + "/weight"], triton ? 2 : 1);
    at::Tensor upstream = stacked(Golden::get()["grad/" + part[1] + "/upstream"], triton ? 2 : 1);
    if (triton) upstream = upstream.to(w.scalar_type());
    const WeightScheme scheme{weight_format(part[3]), triton ? Rules::kPeerTriton : Rules::kPeerEager, at::kBFloat16};
    const ReferenceScales scales = reference_scales(scheme, w, prefix);
    const at::Tensor alpha = Golden::get()[prefix + "/alpha"].reshape(scales.ref.sizes());
    const at::Tensor out = fake_quantize_weight(scheme, scales, alpha, w, triton ? w.scalar_type() : at::kFloat);
    expect_equal(out, Golden::get()[prefix + "/out"], prefix + "/out", triton ? 0 : kRescaleUlps);
    expect_close(alpha_gradient(scheme, scales, alpha, w, upstream), Golden::get()[prefix + "/d_alpha"], kGradientTolerance, prefix + "/d_alpha");
    ++entries;
  }
  EXPECT_EQ(entries, 36);   // 3 weights, 4 eager and 2 Triton formats, 2 alphas
}

/// Low nibble first.
at::Tensor packed(const at::Tensor& codes) {
  const at::Tensor pairs = codes.reshape({codes.size(-2), -1, 2});
  return at::bitwise_or(pairs.select(-1, 0), at::bitwise_left_shift(pairs.select(-1, 1), 4));
}

TEST(GoldenWeight, CompressedTensorsWritesOurNvfp4Bytes) {
  const std::string prefix = "w/rand_fp32/export/nvfp4";   // float32 input: the library divides as we do
  const at::Tensor w = stacked(Golden::get()["w/rand_fp32/weight"]);
  const QuantizedWeight q = WeightQuantizer("w", weight_format("nvfp4"), Numerics::kDeploy, w, Compute{}, at::kFloat).quantize(w);
  EXPECT_TRUE(at::equal(q.global_scale, Golden::get()[prefix + "/weight_global_scale"]));
  EXPECT_TRUE(at::equal(q.scale[0].view(at::kByte), Golden::get()[prefix + "/weight_scale"].view(at::kByte)));
  EXPECT_TRUE(at::equal(packed(q.codes), Golden::get()[prefix + "/weight_packed"]));
}

TEST(GoldenWeight, CompressedTensorsStoresOurScales) {
  for (const char* name : {"rand", "ties", "huge"}) {   // the others have zero or tiny blocks, where we floor and it does not
    const at::Tensor w = stacked(Golden::get()[std::string("w/") + name + "/weight"]);
    for (const char* format : {"nvfp4", "w4a16"}) {
      const std::string prefix = std::string("w/") + name + "/export/" + format;
      const QuantizedWeight q = WeightQuantizer(prefix, weight_format(format), Numerics::kDeploy, w, Compute{}, at::kBFloat16).quantize(w);
      expect_equal(q.scale, Golden::get()[prefix + "/weight_scale"], prefix + "/weight_scale");
      if (q.global_scale.defined()) expect_equal(q.global_scale, Golden::get()[prefix + "/weight_global_scale"], prefix + "/global");
    }
  }
}

TEST(GoldenWeight, CompressedTensorsWritesOurInt4Bytes) {
  const at::Tensor w = stacked(Golden::get()["w/rand_fp32/weight"]);
  const QuantizedWeight q = WeightQuantizer("w", weight_format("w4a16"), Numerics::kDeploy, w, Compute{}, at::kFloat).quantize(w);
  expect_equal(q.scale, Golden::get()["w/rand_fp32/export/w4a16/weight_scale"], "scale");
  const at::Tensor words = Golden::get()["w/rand_fp32/export/w4a16/weight_packed"].contiguous();   // int32 [4, 32]: q + 8 in nibbles, lowest first
  for (int64_t row = 0; row < 4; ++row)
    for (int64_t k = 0; k < 256; ++k) {
      const auto nibble = (static_cast<std::uint32_t>(words[row][k / 8].item<int>()) >> (4 * (k % 8))) & 15u;
      ASSERT_EQ(q.codes[0][row][k].item<int>(), static_cast<int>(nibble) - 8) << row << ", " << k;
    }
}

}  // namespace
}  // namespace scalewright
