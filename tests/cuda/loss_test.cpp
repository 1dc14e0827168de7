// The per-token loss: sums in the CPU's order, so that only the device's own logarithms can differ.
#include "comparison.h"
#include "train/adamw_kernel.h"
#include "train/loss_cuda.h"
#include "train/loss_kernel.h"

namespace scalewright::device_test {
namespace {

// On a device: log, log1p and expm1 are right to 1 or 2 units in the last place, and in float32 a difference of log-sums that rounds the
// other way moves every term by one unit of its size (some 1e-6 for logits of size 10).
constexpr double kFloatTolerance = 2e-5, kDoubleTolerance = 1e-12;

at::Tensor column(const std::vector<TokenLoss>& losses, double TokenLoss::*field) {
  at::Tensor values = at::empty({static_cast<int64_t>(losses.size())}, at::kDouble);
  for (std::size_t i = 0; i < losses.size(); ++i) values.mutable_data_ptr<double>()[i] = losses[i].*field;
  return values;
}

void compare(const TokenLossOptions& options, at::ScalarType type, int64_t tokens, int64_t vocabulary, bool has_teacher, bool special, const std::string& name) {
  at::Tensor student = normal({tokens, vocabulary}, 41, type) * 4, teacher = has_teacher ? student + normal({tokens, vocabulary}, 42, type) : at::Tensor();
  if (tokens > 2 && has_teacher) teacher[2].copy_(student[2]);   // equal: a divergence of exactly 0
  if (tokens > 1) student[1].mul_(100);
  if (special) {
    student[0][vocabulary / 2] = std::numeric_limits<double>::quiet_NaN();
    if (tokens > 3) student[3][0] = std::numeric_limits<double>::infinity();
    if (tokens > 4 && has_teacher) teacher[4][vocabulary - 1] = -std::numeric_limits<double>::infinity();
  }
  const at::Tensor labels = at::arange(tokens, at::kLong) * 7 % vocabulary;
  at::Tensor on_host = student.clone(), on_device = there(student.clone());
  std::vector<TokenLoss> want(static_cast<std::size_t>(tokens));
  token_losses_cpu(options, on_host, teacher, {labels.const_data_ptr<int64_t>(), static_cast<std::size_t>(tokens)}, want);
  const at::Tensor losses[] = {cuda::token_losses(options, on_device, there(teacher), there(labels))};
  const std::vector<TokenLoss> got = cuda::read_token_losses(losses);
  const double tolerance = type == at::kDouble ? kDoubleTolerance : kFloatTolerance;
  const std::string what = fmt::format("{} [{}, {}]{}", c10::toString(type), tokens, vocabulary, special ? " with NaN and infinity" : "");
  ASSERT_EQ(got.size(), want.size());
  expect_near("token_losses " + name, column(got, &TokenLoss::loss), column(want, &TokenLoss::loss), tolerance, what + " loss");
  expect_near("token_losses " + name, column(got, &TokenLoss::lm), column(want, &TokenLoss::lm), tolerance, what + " lm");
  expect_near("token_losses " + name, column(got, &TokenLoss::fkl), column(want, &TokenLoss::fkl), tolerance, what + " fkl");
  expect_near("token_losses " + name, column(got, &TokenLoss::rkl), column(want, &TokenLoss::rkl), tolerance, what + " rkl");
  expect_near("token_losses " + name, column(got, &TokenLoss::cakld), column(want, &TokenLoss::cakld), tolerance, what + " cakld");
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].top1_agree, want[i].top1_agree) << what << " token " << i;
  expect_near("token_losses " + name + " gradient", on_device, on_host, tolerance, what);
}

TEST(Loss, EveryDivergence) {
  const std::pair<DistillType, const char*> types[] = {{DistillType::kForwardKl, "fkl"}, {DistillType::kReverseKl, "rkl"}, {DistillType::kCakld, "cakld"}, {DistillType::kJsd, "jsd"}};
  for (const auto& [type, name] : types) {
    TokenLossOptions options;
    options.type = type;
    options.scale = 0.125;
    options.gradient = true;
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      for (const int64_t vocabulary : {1, 5, 1024, 1500, 2 * 32768 + 77}) {
        compare(options, dtype, vocabulary > 2000 ? 2 : 5, vocabulary, true, false, name);
      }
      TokenLossOptions warm = options;
      warm.temperature = 2.5;
      warm.lm_weight = 0.3;
      warm.distill_weight = 0.7;
      compare(warm, dtype, 5, 1111, true, false, name);
      compare(warm, dtype, 5, 1111, true, true, name);
      warm.gradient = false;
      compare(warm, dtype, 3, 64, true, false, name);
    }
  }
}

TEST(Loss, LabelsAlone) {
  TokenLossOptions options;
  options.lm_weight = 1.5;
  options.scale = 0.25;
  options.gradient = true;
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const int64_t vocabulary : {1, 17, 33000}) compare(options, dtype, 3, vocabulary, false, vocabulary == 17, "lm");
}

TEST(AdamW, OneStep) {
  const AdamWUpdate update{0.37, 0.999, 0.9, 0.95, 1e-3, 1.7, 1e-8};
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t n : {0, 1, 1000}) {
      at::Tensor p = normal({n}, 61, dtype), g = adversarial({n}, 62, dtype, true), m = normal({n}, 63, dtype), v = normal({n}, 64, dtype).square();
      at::Tensor got_p = there(p.clone()), got_m = there(m.clone()), got_v = there(v.clone());
      cuda::adamw_update(update, got_p, there(g), got_m, got_v);
      adamw_update_cpu(update, p, g, m, v);
      for (const auto& [got, want, name] : {std::tuple(got_p, p, "p"), std::tuple(got_m, m, "m"), std::tuple(got_v, v, "v")})
        expect_same("adamw", got, want, name);
    }
  }
}

}  // namespace
}  // namespace scalewright::device_test
