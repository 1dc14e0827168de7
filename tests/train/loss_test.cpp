// The chunked loss against plain ATen autograd in float64.
#include "train/loss.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace scalewright {
namespace {

constexpr int64_t kTokens = 13, kHidden = 8, kVocabulary = 37;

Compute float64_compute() {
  Compute compute;
  compute.dtype = at::kDouble;
  return compute;
}

struct Inputs {
  at::Tensor student, teacher, head, labels;
};

Inputs make_inputs(double size = 1.0) {
  at::set_num_threads(1);  // tiny tensors: waking threads costs more than the work
  at::manual_seed(3);
  Inputs in;
  in.student = at::randn({kTokens, kHidden}, at::kDouble) * size;
  in.teacher = in.student + at::randn({kTokens, kHidden}, at::kDouble) * (0.3 * size);
  in.head = at::randn({kVocabulary, kHidden}, at::kDouble);
  in.labels = at::randint(0, kVocabulary, {kTokens}, at::kLong);
  in.labels.slice(0, 2, 5).fill_(-100);
  in.labels[12] = -100;
  return in;
}

struct Expected {
  at::Tensor loss, lm, fkl, rkl, cakld;  // per valid token
};

/// log-probabilities of the outcomes that the options look at.
std::pair<at::Tensor, at::Tensor> outcomes(const LossSection& o, const at::Tensor& s, const at::Tensor& t) {
  const at::Tensor zs = s / o.temperature, zt = t / o.temperature;
  if (o.top_k == 0) return {zs.log_softmax(-1), zt.log_softmax(-1)};
  const at::Tensor index = std::get<1>(t.topk(o.top_k, -1));
  const at::Tensor ks = zs.gather(-1, index), kt = zt.gather(-1, index);
  if (!o.tail) return {ks.log_softmax(-1), kt.log_softmax(-1)};
  const at::Tensor inside = at::zeros_like(t, at::kBool).scatter(-1, index, true);
  const double least = -std::numeric_limits<double>::infinity();
  const at::Tensor tail_s = zs.masked_fill(inside, least).logsumexp(-1, true), tail_t = zt.masked_fill(inside, least).logsumexp(-1, true);
  return {at::cat({ks, tail_s}, -1).log_softmax(-1), at::cat({kt, tail_t}, -1).log_softmax(-1)};
}

Expected plain(const LossSection& o, const Inputs& in, const at::Tensor& student) {
  const at::Tensor rows = in.labels.ne(-100).nonzero().flatten();
  const at::Tensor y = in.labels.index_select(0, rows).unsqueeze(-1);
  const at::Tensor s = student.index_select(0, rows).mm(in.head.t()), t = in.teacher.index_select(0, rows).mm(in.head.t());
  const auto [lp, lq] = outcomes(o, s, t);
  const at::Tensor p = lp.exp(), q = lq.exp();
  Expected e;
  e.lm = -s.log_softmax(-1).gather(-1, y).squeeze(-1);
  e.fkl = (q * (lq - lp)).sum(-1);
  e.rkl = (p * (lp - lq)).sum(-1);
  const at::Tensor c = t.softmax(-1).gather(-1, y).squeeze(-1);
  e.cakld = c * e.rkl + (1 - c) * e.fkl;
  at::Tensor distill = o.type == "rkl" ? e.rkl : o.type == "cakld" ? e.cakld : e.fkl;
  if (o.type == "jsd") {
    const at::Tensor lm = (o.jsd_beta * q + (1 - o.jsd_beta) * p).log();
    distill = o.jsd_beta * (q * (lq - lm)).sum(-1) + (1 - o.jsd_beta) * (p * (lp - lm)).sum(-1);
  }
  e.loss = o.lm_weight * e.lm + o.distill_weight * o.temperature * o.temperature * distill;
  return e;
}

double relative(const at::Tensor& got, const at::Tensor& want) { return ((got - want).norm() / want.norm()).item<double>(); }

void expect_near(double got, double want, double tolerance, const std::string& what) {
  EXPECT_LE(std::abs(got - want), tolerance * std::max(1e-3, std::abs(want))) << what << ": " << got << " instead of " << want;
}

void check(const LossSection& options, const Inputs& in, const std::string& what) {
  const double scale = 0.37;
  at::Tensor a = in.student.clone().requires_grad_(true), b = in.student.clone().requires_grad_(true);
  const LossResult got = distillation_loss(float64_compute(), options, a, in.teacher, in.head, in.head, in.labels, scale);
  const Expected want = plain(options, in, b);
  const at::Tensor loss = want.loss.sum() * scale;
  (got.loss * 2).backward();
  (loss * 2).backward();
  // 1e-10: both sides are float64; sums of some hundred terms in another order differ by about 1e-14.
  constexpr double kTolerance = 1e-10;
  expect_near(got.loss.item<double>(), loss.item<double>(), kTolerance, what + " loss");
  expect_near(got.sums.lm, want.lm.sum().item<double>(), kTolerance, what + " lm");
  expect_near(got.sums.fkl, want.fkl.sum().item<double>(), kTolerance, what + " fkl");
  expect_near(got.sums.rkl, want.rkl.sum().item<double>(), kTolerance, what + " rkl");
  expect_near(got.sums.cakld, want.cakld.sum().item<double>(), kTolerance, what + " cakld");
  expect_near(got.sums.fkl_squared, want.fkl.square().sum().item<double>(), kTolerance, what + " fkl squared");
  EXPECT_EQ(got.sums.tokens, 9);
  EXPECT_LE(relative(a.grad(), b.grad()), kTolerance) << what << " gradient";
}

TEST(Loss, EveryVariantEqualsPlainAutograd) {
  const Inputs in = make_inputs();
  for (const std::string type : {"fkl", "kl", "rkl", "cakld", "jsd"})
    for (const double temperature : {1.0, 2.5})
      for (const auto& [top_k, tail] : std::vector<std::pair<int64_t, bool>>{{0, false}, {5, false}, {5, true}})
        for (const auto& [lm, distill] : std::vector<std::pair<double, double>>{{0, 1}, {1, 0}, {0.7, 1.3}}) {
          LossSection o;
          o.type = type;
          o.temperature = temperature;
          o.top_k = top_k;
          o.tail = tail;
          o.lm_weight = lm;
          o.distill_weight = distill;
          o.jsd_beta = 0.3;
          o.chunk = 4;
          check(o, in, fmt::format("{} T={} top_k={} tail={} lm={} distill={}", type, temperature, top_k, tail, lm, distill));
        }
}

TEST(Loss, JsdLimitsAreTheTwoKls) {
  const Inputs in = make_inputs();
  for (const auto& [beta, type] : std::vector<std::pair<double, std::string>>{{0.0, "fkl"}, {1.0, "rkl"}}) {
    LossSection jsd, kl;
    jsd.type = "jsd";
    jsd.jsd_beta = beta;
    kl.type = type;
    const auto a = distillation_loss(float64_compute(), jsd, in.student, in.teacher, in.head, in.head, in.labels, 1);
    const auto b = distillation_loss(float64_compute(), kl, in.student, in.teacher, in.head, in.head, in.labels, 1);
    EXPECT_EQ(a.sums.loss, b.sums.loss);
  }
}

TEST(Loss, ChunkSizeDoesNotMatter) {
  const Inputs in = make_inputs();
  LossSection o;
  o.type = "cakld";
  o.lm_weight = 0.5;
  const auto run = [&](int64_t chunk) {
    o.chunk = chunk;
    at::Tensor student = in.student.clone().requires_grad_(true);
    const LossResult r = distillation_loss(float64_compute(), o, student, in.teacher, in.head, in.head, in.labels, 1);
    r.loss.backward();
    return std::pair(r.sums.loss, student.grad());
  };
  const auto whole = run(1000);
  for (const int64_t chunk : {1, 2, 3, 7, 9}) {
    const auto part = run(chunk);
    // 1e-12: only the products' row blocking differs.
    EXPECT_NEAR(part.first, whole.first, 1e-12 * std::abs(whole.first));
    EXPECT_LE(relative(part.second, whole.second), 1e-12);
  }
}

TEST(Loss, IgnoredTokensHaveNoGradientAndOrderOfTheRestIsKept) {
  const Inputs in = make_inputs();
  at::Tensor student = in.student.clone().requires_grad_(true);
  distillation_loss(float64_compute(), {}, student, in.teacher, in.head, in.head, in.labels, 1).loss.backward();
  const at::Tensor ignored = in.labels.eq(-100);
  EXPECT_EQ(student.grad().masked_select(ignored.unsqueeze(-1)).abs().sum().item<double>(), 0);
  EXPECT_GT(student.grad().abs().sum(-1).masked_select(ignored.logical_not()).min().item<double>(), 0);
}

TEST(Loss, NoValidTokenIsZero) {
  const Inputs in = make_inputs();
  at::Tensor student = in.student.clone().requires_grad_(true);
  const LossResult r = distillation_loss(float64_compute(), {}, student, in.teacher, in.head, in.head, at::full_like(in.labels, -100), 1);
  r.loss.backward();
  EXPECT_EQ(r.sums.tokens, 0);
  EXPECT_EQ(r.loss.item<double>(), 0);
  EXPECT_EQ(student.grad().abs().sum().item<double>(), 0);
}

TEST(Loss, EqualTeacherGivesExactlyZero) {
  Inputs in = make_inputs(5);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    for (const std::string type : {"fkl", "rkl", "cakld", "jsd"})
      for (const int64_t top_k : {0, 4}) {
        Compute compute;
        compute.dtype = dtype;
        LossSection o;
        o.type = type;
        o.top_k = top_k;
        o.temperature = 1.7;
        at::Tensor student = in.student.clone().to(dtype).requires_grad_(true);
        const LossResult r = distillation_loss(compute, o, student, student.detach().clone(), in.head.to(dtype), in.head.to(dtype), in.labels, 1);
        r.loss.backward();
        EXPECT_EQ(r.sums.loss, 0) << type << top_k;
        EXPECT_EQ(r.sums.top1_agree, r.sums.tokens);
        EXPECT_EQ(student.grad().abs().max().item<double>(), 0) << type << top_k;
      }
}

TEST(Loss, ExtremeLogitsStayFinite) {
  Inputs in = make_inputs(1e4);  // logits of about 1e4 times a few
  in.teacher = -in.student;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    for (const std::string type : {"fkl", "rkl", "cakld", "jsd"})
      for (const int64_t top_k : {0, 4}) {
        Compute compute;
        compute.dtype = dtype;
        LossSection o;
        o.type = type;
        o.top_k = top_k;
        o.lm_weight = 1;
        at::Tensor student = in.student.clone().to(dtype).requires_grad_(true);
        const LossResult r = distillation_loss(compute, o, student, in.teacher.to(dtype), in.head.to(dtype), in.head.to(dtype), in.labels, 1);
        r.loss.backward();
        EXPECT_TRUE(std::isfinite(r.sums.loss) && std::isfinite(r.sums.cakld)) << type << top_k;
        EXPECT_TRUE(student.grad().isfinite().all().item<bool>()) << type << top_k;
      }
}

TEST(Loss, NotANumberIsNotSwallowed) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    for (const int64_t top_k : {0, 4}) {
      Inputs in = make_inputs();
      in.student[0][3] = std::nan("");
      Compute compute;
      compute.dtype = dtype;
      LossSection o;
      o.top_k = top_k;
      const LossResult r =
          distillation_loss(compute, o, in.student.to(dtype), in.teacher.to(dtype), in.head.to(dtype), in.head.to(dtype), in.labels, 1);
      EXPECT_FALSE(std::isfinite(r.sums.loss));
    }
}

TEST(Loss, FloatIsCloseToDoubleEvenWhenTheGapIsSmall) {
  at::manual_seed(5);
  const int64_t n = 6, v = 2053, h = 16;
  const at::Tensor student = at::randn({n, h}, at::kDouble).to(at::kFloat).to(at::kDouble);
  const at::Tensor teacher = (student + 1e-3 * at::randn({n, h}, at::kDouble)).to(at::kFloat).to(at::kDouble);
  const at::Tensor head = at::randn({v, h}, at::kDouble).to(at::kFloat).to(at::kDouble), labels = at::randint(0, v, {n}, at::kLong);
  for (const std::string type : {"fkl", "rkl", "cakld", "jsd"}) {
    LossSection o;
    o.type = type;
    Compute single;
    at::Tensor a = student.clone().requires_grad_(true), b = student.to(at::kFloat).requires_grad_(true);
    const auto want = distillation_loss(float64_compute(), o, a, teacher, head, head, labels, 1);
    const auto got = distillation_loss(single, o, b, teacher.to(at::kFloat), head.to(at::kFloat), head.to(at::kFloat), labels, 1);
    want.loss.backward();
    got.loss.backward();
    // The divergence is about 1e-6 a token and float32 logits of about 10 carry errors of 1e-6 against differences of 1e-3.
    EXPECT_NEAR(got.sums.loss, want.sums.loss, 1e-2 * want.sums.loss) << type;
    EXPECT_LE(relative(b.grad().to(at::kDouble), a.grad()), 1e-2) << type;
  }
}

TEST(Loss, HeadGradient) {
  const Inputs in = make_inputs();
  LossSection o;
  o.lm_weight = 0.4;
  at::Tensor head = in.head.clone().requires_grad_(true);
  distillation_loss(float64_compute(), o, in.student, in.teacher, head, in.head, in.labels, 1).loss.backward();
  Inputs plain_in = in;
  plain_in.head = in.head.clone().requires_grad_(true);
  // The plain version shares the head with the teacher; take its gradient through the student only.
  const at::Tensor rows = in.labels.ne(-100).nonzero().flatten();
  const at::Tensor y = in.labels.index_select(0, rows).unsqueeze(-1);
  const at::Tensor lp = in.student.index_select(0, rows).mm(plain_in.head.t()).log_softmax(-1);
  const at::Tensor lq = in.teacher.index_select(0, rows).mm(in.head.t()).log_softmax(-1);
  ((lq.exp() * (lq - lp)).sum() - 0.4 * lp.gather(-1, y).sum()).backward();
  EXPECT_LE(relative(head.grad(), plain_in.head.grad()), 1e-10);
}

TEST(Loss, WithoutTeacherOnlyTheLanguageModel) {
  const Inputs in = make_inputs();
  LossSection o;
  o.lm_weight = 1;
  at::Tensor a = in.student.clone().requires_grad_(true), b = in.student.clone().requires_grad_(true);
  const LossResult r = distillation_loss(float64_compute(), o, a, {}, in.head, {}, in.labels, 1);
  r.loss.backward();
  const Expected want = plain(o, in, b);
  want.lm.sum().backward();
  EXPECT_NEAR(r.sums.loss, want.lm.sum().item<double>(), 1e-10);
  EXPECT_EQ(r.sums.fkl, 0);
  EXPECT_LE(relative(a.grad(), b.grad()), 1e-10);
}

TEST(Loss, NamesOfTheTypes) {
  EXPECT_EQ(find_distill_type("kl"), DistillType::kForwardKl);
  EXPECT_THROW(find_distill_type("cakl"), UserError);
}

}  // namespace
}  // namespace scalewright
