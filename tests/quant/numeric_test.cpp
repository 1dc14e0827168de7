// Rounding and codes of single elements: known answers, and agreement with ATen's casts over all codes and their neighbourhoods.
#include "quant/numeric.h"

#include "golden.h"

namespace scalewright {
namespace {

using test::Golden;

std::vector<float> floats(const at::Tensor& t) {
  const at::Tensor f = t.to(at::kFloat).contiguous();
  return {f.const_data_ptr<float>(), f.const_data_ptr<float>() + f.numel()};
}

TEST(Numeric, E2M1AgreesWithFourLibraries) {
  const Golden& golden = Golden::get();
  const auto x = floats(golden["prim/e2m1/x"]);
  for (const char* library : {"ct", "modelopt_nvfp4", "as_triton", "as_eager"}) {
    const at::Tensor want = golden[std::string("prim/e2m1/") + library].contiguous();
    const bool eager = std::string(library) == "as_eager";
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float value = eager ? numeric::round_e2m1_toward_zero(x[i]) : numeric::round_e2m1(x[i]);
      const bool negative = x[i] < 0 && !(eager && value == 0);   // the eager path gives +0
      EXPECT_EQ(numeric::e2m1_code(value, negative), want[i].item<int>()) << library << " at " << x[i];
    }
  }
}

TEST(Numeric, E2M1CodesRoundTrip) {
  const float levels[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  for (std::uint32_t code = 0; code < 16; ++code) {
    const float value = numeric::e2m1_value(code);
    EXPECT_EQ(value, (code & 8 ? -1 : 1) * levels[code & 7]);
    EXPECT_EQ(numeric::e2m1_code(value, std::signbit(value)), code);
    EXPECT_EQ(numeric::round_e2m1(value), value);
    EXPECT_EQ(numeric::round_e2m1_toward_zero(value), value);
  }
}

TEST(Numeric, E4M3AgreesWithTorch) {
  const Golden& golden = Golden::get();
  const auto x = floats(golden["prim/e4m3/x"]);
  const at::Tensor plain = golden["prim/e4m3/plain"];
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(numeric::e4m3_code(numeric::round_e4m3(x[i]), std::signbit(x[i])), plain[i].item<std::uint8_t>()) << x[i];
}

TEST(Numeric, E4M3IsTorchsCastOverTheWholeRange) {
  // Every bit pattern with 12 leading mantissa bits, beyond which only ties matter, and those come from the exact midpoints.
  const at::Tensor bits = at::arange(0, int64_t{1} << 32, (1 << 11) - 1, at::kLong).to(at::kInt);
  const at::Tensor x = bits.view(at::kFloat).clone();
  const at::Tensor want = x.to(at::kFloat8_e4m3fn).to(at::kFloat);
  const float* in = x.const_data_ptr<float>();
  const float* expected = want.const_data_ptr<float>();
  int64_t bad = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float got = numeric::round_e4m3(in[i]);
    bad += !(got == expected[i] || (std::isnan(got) && std::isnan(expected[i])));
  }
  EXPECT_EQ(bad, 0) << "of " << x.numel();
}

TEST(Numeric, E4M3CodesRoundTrip) {
  const at::Tensor values = at::arange(256, at::kInt).to(at::kByte).view(at::kFloat8_e4m3fn).to(at::kFloat);
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float want = values[code].item<float>(), got = numeric::e4m3_value(code);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    EXPECT_EQ(got, want);
    EXPECT_EQ(numeric::e4m3_code(got, std::signbit(got)), code);
  }
}

TEST(Numeric, IntegersRoundAsEachLibraryDoes) {
  const Golden& golden = Golden::get();
  const auto x = floats(golden["prim/int4_round/x"]), ct = floats(golden["prim/int4_round/ct"]), eager = floats(golden["prim/int4_round/as_eager"]),
             triton = floats(golden["prim/int4_round/as_triton"]);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(numeric::round_integer(x[i], -8, 7), ct[i]) << x[i];
    EXPECT_EQ(numeric::round_integer(x[i], -7, 7), eager[i]) << x[i];
    EXPECT_EQ(numeric::round_integer_away(x[i], -7, 7), triton[i]) << x[i];
  }
}

TEST(Numeric, Bfloat16IsTorchsCast) {
  const at::Tensor x = at::arange(0, int64_t{0x7f800000}, 32749, at::kLong).to(at::kInt).view(at::kFloat).clone();
  const at::Tensor want = x.to(at::kBFloat16).to(at::kFloat);
  int64_t bad = 0;
  for (int64_t i = 0; i < x.numel(); ++i) bad += numeric::round_bf16(x.const_data_ptr<float>()[i]) != want.const_data_ptr<float>()[i];
  EXPECT_EQ(bad, 0) << "of " << x.numel();
}

TEST(Numeric, NanStaysNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {numeric::round_e2m1(nan), numeric::round_e2m1_toward_zero(nan), numeric::round_e4m3(nan), numeric::round_integer(nan, -8, 7)})
    EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace scalewright
