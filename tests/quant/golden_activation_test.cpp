// Activation quantizers against AngelSlim: values, straight-through gradients, and the experts' learned globals.
#include <torch/csrc/autograd/autograd.h>

#include "golden.h"
#include "quant/activation_quantizer.h"

namespace scalewright {
namespace {

using test::expect_close;
using test::expect_equal;
using test::Golden;

constexpr double kGradientTolerance = 5e-5;   // float32 sums of terms that cancel (block scale minus raw block scale)
constexpr int kScaledGradientUlps = 2;        // its backward multiplies the gradient by s and divides it by s again

at::Tensor gradient_of(const at::Tensor& out, const at::Tensor& upstream, const at::Tensor& of) {
  return torch::autograd::grad({(out.to(at::kFloat) * upstream).sum()}, {of}, {}, true)[0];
}

TEST(GoldenActivation, AngelSlimDynamic) {
  const auto prefixes = Golden::get().prefixes("act/as/", "act/as/");
  for (const char* name : {"nvfp4", "w8a8", "fp8"}) {
    const std::string prefix = std::string("act/as/") + name;
    ASSERT_NE(std::find(prefixes.begin(), prefixes.end(), prefix), prefixes.end());
    const at::Tensor x = Golden::get()["act/x"].to(at::kFloat).requires_grad_(true);
    ActivationQuantizer q(name, *find_format(name).activation, Numerics::kMcoreQad, 0, Compute{});
    const at::Tensor out = q.forward(x, {});
    expect_equal(out, Golden::get()[prefix + "/out"], prefix + "/out");
    expect_equal(gradient_of(out, Golden::get()["act/upstream"], x), Golden::get()[prefix + "/d_x"], prefix + "/d_x", kScaledGradientUlps);
  }
}

TEST(GoldenActivation, AngelSlimExperts) {
  for (const char* tag : {"one", "mixed"}) {
    const std::string prefix = std::string("act/as/grouped_nvfp4/alpha_") + tag;
    const at::Tensor x = Golden::get()["act/x"].clone().requires_grad_(true), upstream = Golden::get()["act/upstream"];
    const std::vector<int64_t> offsets = {0, 4, 4, 10};
    ActivationQuantizer q("experts", *find_format("nvfp4").activation, Numerics::kMcoreQad, 3, Compute{});
    q.forward(x, offsets);
    {
      at::NoGradGuard no_grad;
      q.alpha().copy_(Golden::get()[prefix + "/alpha"]);
    }
    expect_equal(q.ref(), Golden::get()[prefix + "/ref"], prefix + "/ref");
    const at::Tensor out = q.forward(x, offsets);
    expect_equal(out, Golden::get()[prefix + "/out"], prefix + "/out");   // bfloat16 output hides the rescale's ulp
    expect_equal(gradient_of(out, upstream, x), Golden::get()[prefix + "/d_x"], prefix + "/d_x");
    expect_close(gradient_of(out, upstream, q.alpha()), Golden::get()[prefix + "/d_alpha"], kGradientTolerance, prefix + "/d_alpha");
  }
}

}  // namespace
}  // namespace scalewright
