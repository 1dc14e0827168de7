#include "train/schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace scalewright {
namespace {

TrainSection options(const std::string& schedule) {
  TrainSection o;
  o.schedule = schedule;
  o.lr = 1.0;
  o.min_lr = 0.1;
  o.steps = 100;
  o.warmup = 20;
  o.decay_fraction = 0.2;
  return o;
}

TEST(Schedule, WarmupIsLinearAndEndsAtTheLearningRate) {
  for (const std::string schedule : {"constant", "linear", "cosine", "wsd"}) {
    EXPECT_DOUBLE_EQ(learning_rate(options(schedule), 0), 0.05) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(options(schedule), 9), 0.5) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(options(schedule), 19), 1.0) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(options(schedule), 20), 1.0) << schedule;
  }
}

TEST(Schedule, Shapes) {
  EXPECT_DOUBLE_EQ(learning_rate(options("constant"), 99), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options("linear"), 60), 0.55);   // half-way from 20 to 100
  EXPECT_DOUBLE_EQ(learning_rate(options("cosine"), 60), 0.55);   // cos(pi/2) = 0, up to 1e-16
  EXPECT_DOUBLE_EQ(learning_rate(options("wsd"), 79), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options("wsd"), 80), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options("wsd"), 90), 0.55);
}

TEST(Schedule, AllButConstantEndAtTheMinimum) {
  for (const std::string schedule : {"linear", "cosine", "wsd"}) {
    EXPECT_DOUBLE_EQ(learning_rate(options(schedule), 100), 0.1) << schedule;
    for (int64_t step = 20; step < 99; ++step) EXPECT_GE(learning_rate(options(schedule), step), learning_rate(options(schedule), step + 1)) << schedule;
  }
}

TEST(Schedule, OnlyWarmup) {
  TrainSection o = options("cosine");
  o.warmup = o.steps;
  EXPECT_DOUBLE_EQ(learning_rate(o, 99), 1.0);
}

TEST(Schedule, UnknownNameIsRefused) { EXPECT_THROW(learning_rate(options("step"), 50), UserError); }

}  // namespace
}  // namespace scalewright
