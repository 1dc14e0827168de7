#include "train/optimizer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace scalewright {
namespace {

Trainable make_trainable(const std::string& name, const std::vector<double>& values, int group = 0) {
  at::Tensor tensor = at::tensor(values, at::kDouble);
  tensor.requires_grad_(true);
  return {name, tensor, Trainable::Kind::kWeightScale, group};
}

void set_gradient(Trainable& trainable, const std::vector<double>& values) { trainable.tensor.mutable_grad() = at::tensor(values, at::kDouble); }

TrainSection no_clipping() {
  TrainSection options;
  options.clip = 0;
  return options;
}

// From torch.optim.AdamW(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1) in float64, after each of three steps.
TEST(AdamW, EqualsTorch) {
  TrainSection options = no_clipping();
  options.weight_decay = 0.1;
  Trainable p = make_trainable("p", {1.0, -0.5, 0.25});
  AdamW optimizer(options, {p});
  const std::vector<std::vector<double>> gradients = {{0.3, -1.2, 0.0}, {-0.1, 0.7, 2.0}, {0.05, 0.05, -0.4}};
  const std::vector<std::vector<double>> expected = {{0.8900000033333332, -0.3950000008333333, 0.2475},
                                                     {0.8406693349429323, -0.37056082722841843, 0.17152900028279505},
                                                     {0.7908270681550182, -0.35316739581313455, 0.12596831651752158}};
  for (std::size_t step = 0; step < gradients.size(); ++step) {
    set_gradient(p, gradients[step]);
    optimizer.step(0.1, optimizer.gradient_norm());
    // 1e-15: the same formula in float64, up to the order of a few roundings.
    for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(p.tensor[i].item<double>(), expected[step][static_cast<std::size_t>(i)], 1e-15);
  }
  EXPECT_EQ(optimizer.updates(), 3);
  EXPECT_NEAR(optimizer.state().at("adam.v/p")[2].item<double>(), 0.198, 1e-15);
}

TEST(AdamW, NormAndClipping) {
  TrainSection options;
  options.clip = 1;
  Trainable a = make_trainable("a", {0, 0}), b = make_trainable("b", {0});
  AdamW optimizer(options, {b, a});
  set_gradient(a, {3, 0});
  set_gradient(b, {4});
  EXPECT_EQ(optimizer.gradient_norm(), 5);
  optimizer.step(1e-3, 5);
  // The first moment is (1-beta1) times the clipped gradient g/5.
  EXPECT_NEAR(optimizer.state().at("adam.m/a")[0].item<double>(), 0.1 * 0.6, 1e-15);
  EXPECT_NEAR(optimizer.state().at("adam.m/b")[0].item<double>(), 0.1 * 0.8, 1e-15);
}

TEST(AdamW, LearningRateGroups) {
  Trainable a = make_trainable("a", {1}, 0), b = make_trainable("b", {1}, 1);
  AdamW optimizer(no_clipping(), {a, b}, {1.0, 0.1});
  set_gradient(a, {1});
  set_gradient(b, {1});
  optimizer.step(0.01, optimizer.gradient_norm());
  EXPECT_NEAR(1 - a.tensor[0].item<double>(), 0.01, 1e-9);
  EXPECT_NEAR(1 - b.tensor[0].item<double>(), 0.001, 1e-9);
}

TEST(AdamW, MissingGradientCountsAsZero) {
  Trainable a = make_trainable("a", {1});
  AdamW optimizer(no_clipping(), {a});
  EXPECT_EQ(optimizer.gradient_norm(), 0);
  optimizer.step(0.01, 0);
  EXPECT_EQ(a.tensor[0].item<double>(), 1);
}

TEST(AdamW, StateGoesThroughACheckpoint) {
  Trainable a = make_trainable("a", {1, 2}), b = make_trainable("a", {1, 2});
  AdamW first(no_clipping(), {a}), second(no_clipping(), {b});
  set_gradient(a, {0.5, -1});
  first.step(0.1, first.gradient_norm());
  b.tensor.data().copy_(a.tensor);
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : first.state()) saved[name] = tensor.clone();
  second.load_state(saved, first.updates(), "test");
  set_gradient(a, {0.1, 0.2});
  set_gradient(b, {0.1, 0.2});
  first.step(0.1, first.gradient_norm());
  second.step(0.1, second.gradient_norm());
  EXPECT_TRUE(a.tensor.equal(b.tensor));
}

TEST(AdamW, ForeignStateIsRefusedByName) {
  AdamW optimizer(no_clipping(), {make_trainable("a", {1, 2})});
  const std::map<std::string, at::Tensor> state = {{"adam.m/a", at::zeros({3}, at::kDouble)}, {"adam.v/x", at::zeros({2}, at::kDouble)}};
  try {
    optimizer.load_state(state, 1, "step_7");
    FAIL() << "accepted";
  } catch (const DataError& error) {
    const std::string text = error.what();
    for (const char* part : {"step_7", "adam.m/a", "adam.v/a is missing", "adam.v/x is not"}) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(NonFiniteGuard, SkipsCountsAndGivesUp) {
  NonFiniteGuard guard(2);
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(guard.accept(1, 0.5, 1));
  EXPECT_FALSE(guard.accept(2, nan, 1));
  EXPECT_FALSE(guard.accept(3, 0.5, infinity));
  EXPECT_TRUE(guard.accept(4, 0.5, 1));
  EXPECT_EQ(guard.in_a_row(), 0);
  EXPECT_EQ(guard.skipped(), 2);
  EXPECT_FALSE(guard.accept(5, nan, nan));
  EXPECT_FALSE(guard.accept(6, nan, nan));
  EXPECT_THROW(guard.accept(7, nan, nan), NonFiniteError);
}

}  // namespace
}  // namespace scalewright
