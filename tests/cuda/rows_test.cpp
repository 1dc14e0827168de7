// Permutations, norm, SwiGLU and rope: the same bits as on the CPU.
#include "comparison.h"
#include "ops/norm_kernels.h"
#include "ops/permute.h"
#include "ops/permute_kernels.h"
#include "ops/rope_kernels.h"
#include "ops/activation.h"
#include "ops/tensors_cuda.h"

namespace scalewright::device_test {
namespace {

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16};

std::string named(at::ScalarType type, int64_t rows, int64_t width) { return fmt::format("{} [{}, {}]", c10::toString(type), rows, width); }

TEST(Rows, Permutation) {
  for (const auto type : kTypes) {
    for (const auto& [tokens, choices, width] : std::vector<std::array<int64_t, 3>>{{0, 2, 8}, {1, 1, 1}, {7, 2, 16}, {33, 4, 300}, {5, 3, 513}}) {
      const std::string what = named(type, tokens, width);
      const int64_t slots = tokens * choices;
      const at::Tensor expert = at::randint(0, 5, {tokens, choices}, at::kLong);
      const ExpertOrder order = sort_by_expert(expert, 5);
      const at::Tensor token = there(order.token), slot = there(order.slot);
      at::Tensor inverse = at::empty({slots}, at::kLong);
      inverse.index_copy_(0, order.slot, at::arange(slots, at::kLong));
      expect_same("inverse", cuda::inverse_of(slot), inverse, what);
      const at::Tensor x = adversarial({tokens, width}, 1, type, true), y = adversarial({slots, width}, 2, type, true), dout = normal({tokens, width}, 3, type);
      // Rows with other strides than their width, as slices have.
      const at::Tensor wide = at::cat({y, y}, 1).narrow(1, width / 2, width);
      for (const auto weight_type : {at::kFloat, type}) {
        const at::Tensor weight = at::rand({tokens, choices}).to(weight_type);
        expect_same("sum_choices", cuda::sum_choices(there(y), there(weight), there(inverse), tokens), sum_choices(y, weight, inverse, tokens), what);
        expect_same("sum_choices", cuda::sum_choices(there(at::cat({y, y}, 1)).narrow(1, width / 2, width), there(weight), there(inverse), tokens),
                    sum_choices(wide, weight, inverse, tokens), what + " strided");
        expect_same("scale_rows", cuda::scale_rows(there(dout), there(weight), token, slot), scale_rows(dout, weight, order.token, order.slot), what);
        expect_same("choice_dots", cuda::choice_dots(there(dout), there(y), there(weight), there(inverse)), choice_dots(dout, y, weight, inverse), what);
      }
      expect_same("sum_choices", cuda::sum_choices(there(y), {}, there(inverse), tokens), sum_choices(y, {}, inverse, tokens), what + " unweighted");
      expect_same("copy_rows", cuda::copy_rows(there(x), token), copy_rows(x, order.token), what);
      const at::Tensor twice = at::cat({x, x}, 1);
      expect_same("copy_rows", cuda::copy_rows(there(twice).narrow(1, width / 2, width), token), copy_rows(twice.narrow(1, width / 2, width), order.token),
                  what + " strided");
    }
  }
}

TEST(Rows, Norm) {
  for (const auto type : kTypes) {
    for (const auto& [rows, width] : std::vector<std::array<int64_t, 2>>{{0, 8}, {1, 1}, {3, 15}, {130, 64}, {65, 300}, {16, 2048}}) {
      const std::string what = named(type, rows, width);
      for (const bool wild : {false, true}) {
        const at::Tensor x = wild ? adversarial({rows, width}, 4, type, true) : normal({rows, width}, 4, type);
        const at::Tensor weight = normal({width}, 5, type), dy = normal({rows, width}, 6, type);
        const auto [y, rstd] = rms_norm_forward(x, weight, 1e-6);
        const auto [got_y, got_rstd] = cuda::rms_norm_forward(there(x), there(weight), 1e-6);
        expect_same("rms_norm", got_y, y, what);
        expect_same("rms_norm", got_rstd, rstd, what + " rstd");
        const auto [dx, dw] = rms_norm_backward(dy, x, weight, rstd, true, true);
        const auto [got_dx, got_dw] = cuda::rms_norm_backward(there(dy), there(x), there(weight), there(rstd), true, true);
        expect_same("rms_norm_input_gradient", got_dx, dx, what);
        expect_same("rms_norm_weight_gradient", got_dw, dw, what);
      }
    }
  }
  // Heads in a fused projection: three dimensions, rows with a stride.
  const at::Tensor qkv = normal({9, 6, 64}, 7, at::kBFloat16), weight = normal({64}, 8, at::kBFloat16);
  expect_same("rms_norm", cuda::rms_norm_forward(there(qkv).narrow(1, 1, 3), there(weight), 1e-6).first, rms_norm_forward(qkv.narrow(1, 1, 3), weight, 1e-6).first,
              "heads of a fused projection");
}

TEST(Rows, SwiGlu) {
  for (const auto type : kTypes) {
    for (const auto& [rows, width] : std::vector<std::array<int64_t, 2>>{{0, 8}, {1, 1}, {5, 96}, {3, 768}}) {
      const std::string what = named(type, rows, width);
      const at::Tensor gate_up = adversarial({rows, 2 * width}, 9, type, true).requires_grad_(), dy = normal({rows, width}, 10, type);
      const at::Tensor y = swiglu(gate_up);
      expect_same("swiglu", cuda::swiglu_forward(there(gate_up.detach())), y.detach(), what);
      y.backward(dy);
      expect_same("swiglu_gradient", cuda::swiglu_backward(there(dy), there(gate_up.detach())), gate_up.grad(), what);
    }
  }
}

TEST(Rows, Rope) {
  for (const auto type : kTypes) {
    const auto accurate = type == at::kDouble ? at::kDouble : at::kFloat;
    for (const auto& [tokens, heads, width] : std::vector<std::array<int64_t, 3>>{{0, 2, 8}, {1, 1, 2}, {7, 3, 64}, {4, 5, 128}}) {
      const at::Tensor fused = adversarial({tokens, heads + 2, width}, 11, type, true), x = fused.narrow(1, 1, heads);
      const at::Tensor angle = normal({tokens, width / 2}, 12, accurate) * 100, cos = angle.cos(), sin = angle.sin();
      for (const bool inverse : {false, true})
        expect_same("rotate_half", cuda::rotate_half(there(fused).narrow(1, 1, heads), there(cos), there(sin), inverse), rotate_half(x, cos, sin, inverse),
                    fmt::format("{} [{}, {}, {}]", c10::toString(type), tokens, heads, width));
    }
  }
}

}  // namespace
}  // namespace scalewright::device_test
