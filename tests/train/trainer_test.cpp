#include "train/trainer.h"

#include <gtest/gtest.h>

#include <csignal>

#include "base/error.h"
#include "store/checkpoint.h"
#include "store/files.h"
#include "store/safetensors.h"
#include "tiny_run.h"
#include "train/calibration.h"
#include "train/init_scales.h"
#include "train/optimizer.h"
#include "train/training_step.h"

namespace scalewright {
namespace {

/// The message of the exception of type E that `action` throws.
template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::map<std::string, at::Tensor> gradients(Decoder& decoder, Teacher& teacher, const RowSource& rows, const TrainSection& options) {
  accumulate_gradients(decoder, teacher, rows, options, 0, 4);
  std::map<std::string, at::Tensor> result;
  for (const Trainable& trainable : decoder.trainables()) result[trainable.name] = trainable.tensor.grad().clone();
  return result;
}

double largest_relative_difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  double worst = 0;
  for (const auto& [name, tensor] : a) {
    const double norm = tensor.norm().item<double>();
    if (norm > 0) worst = std::max(worst, (tensor - b.at(name)).norm().item<double>() / norm);
  }
  return worst;
}

TEST(Trainer, MicroBatchesDoNotMatter) {
  const TinyRun tiny("accumulation");
  const auto with = [&](int64_t micro_batch) {
    Config config = tiny.config({fmt::format("train.micro_batch={}", micro_batch)});
    const auto decoder = tiny.decoder(config, at::kDouble);
    SelfTeacher teacher(*decoder);
    return gradients(*decoder, teacher, tiny.rows, config.train);
  };
  const auto one_by_one = with(1), all_at_once = with(4);
  EXPECT_GT(one_by_one.size(), 6u);
  // 1e-10: float64 sums in another order.
  EXPECT_LE(largest_relative_difference(one_by_one, all_at_once), 1e-10);
}

TEST(Trainer, RecomputeGivesTheSameGradients) {
  const TinyRun tiny("recompute");
  const auto with = [&](const char* recompute) {
    Config config = tiny.config({fmt::format("train.recompute={}", recompute)});
    const auto decoder = tiny.decoder(config, at::kDouble);
    SelfTeacher teacher(*decoder);
    return gradients(*decoder, teacher, tiny.rows, config.train);
  };
  EXPECT_EQ(count_differences(with("false"), with("true")), 0);
}

TEST(Trainer, DivergenceFalls) {
  const TinyRun tiny("falls");
  for (const std::string format : {"w4a16", "fp8"}) {
    const TrainOutcome outcome = tiny.run(tiny.config({"quantize.format=" + format, "train.steps=12", "train.micro_batch=16"}), tiny.folder() / format);
    EXPECT_LT(outcome.validation.at("fkl"), outcome.validation_before.at("fkl")) << format;
    EXPECT_EQ(outcome.steps, 12);
    EXPECT_EQ(outcome.best_step, 12);
  }
}

TEST(Trainer, StaticActivationScalesAreCalibratedFirst) {
  const TinyRun tiny("calibration");
  const Config config = tiny.config({"quantize.format=nvfp4", "train.act_scales=true", "train.steps=2"});
  const auto decoder = tiny.decoder(config, at::kFloat);
  EXPECT_TRUE(decoder->needs_calibration());
  calibrate(*decoder, tiny.rows, 8, 3);
  EXPECT_FALSE(decoder->needs_calibration());
  SelfTeacher teacher(*decoder);
  const TrainOutcome outcome = train(tiny.inputs(*decoder, teacher, config, tiny.folder()));
  EXPECT_TRUE(std::isfinite(outcome.loss));
  int64_t references = 0;
  for (const auto& [name, tensor] : checkpoint_tensors(tiny.folder(), 2)) references += name.starts_with("ref/");
  EXPECT_GT(references, 0);
}

TEST(Trainer, ResumedIsBitwiseTheUninterrupted) {
  const TinyRun tiny("resume");
  const std::filesystem::path whole = tiny.folder() / "whole", parts = tiny.folder() / "parts";
  tiny.run(tiny.config({"train.validate_every=3"}), whole);
  const Config config = tiny.config({"train.validate_every=3", "train.save_every=3", "train.schedule=constant"});
  setenv("SCALEWRIGHT_FAILPOINTS", "train.step=error@5", 1);   // in the fifth step: the fourth is lost
  EXPECT_THROW(tiny.run(config, parts), DiskError);
  unsetenv("SCALEWRIGHT_FAILPOINTS");
  const TrainOutcome outcome = tiny.run(config, parts);
  EXPECT_EQ(outcome.resumed_from, 3);
  EXPECT_EQ(count_differences(checkpoint_tensors(whole, 6), checkpoint_tensors(parts, 6)), 0);
  EXPECT_EQ(reproducible_metrics(whole), reproducible_metrics(parts));
}

TEST(Trainer, AFinishedRunIsLeftAlone) {
  const TinyRun tiny("finished");
  const TrainOutcome first = tiny.run(tiny.config(), tiny.folder());
  const TrainOutcome again = tiny.run(tiny.config(), tiny.folder());
  EXPECT_EQ(again.resumed_from, 6);
  EXPECT_EQ(again.validation, first.validation);
  EXPECT_EQ(again.best_step, first.best_step);
}

TEST(Trainer, ASignalSavesAndTheRunGoesOn) {
  const TinyRun tiny("signal");
  const std::filesystem::path whole = tiny.folder() / "whole", parts = tiny.folder() / "parts";
  tiny.run(tiny.config({"data.validation_fraction=0"}), whole);
  // Validation before the start asks the teacher twice (5 rows, 4 at a time); call 4 is the second step.
  const auto spoil = [](int64_t call, at::Tensor&) {
    if (call == 4) std::raise(SIGTERM);
  };
  const std::string text = message_of<StoppedError>([&] { tiny.run(tiny.config(), parts, at::kFloat, spoil); });
  EXPECT_TRUE(contains(text, "SIGTERM after step 2 of 6")) << text;
  EXPECT_EQ(list_checkpoints(parts / "checkpoints"), std::vector<int64_t>{2});
  EXPECT_EQ(tiny.run(tiny.config(), parts).resumed_from, 2);
  EXPECT_EQ(count_differences(checkpoint_tensors(whole, 6), checkpoint_tensors(parts, 6)), 0);
}

TEST(Trainer, ANonFiniteStepIsSkippedWhole) {
  const TinyRun tiny("nonfinite");
  const auto spoil_second_step = [](int64_t call, at::Tensor& hidden) {
    if (call == 4) hidden.fill_(std::nan(""));
  };
  const TrainOutcome outcome = tiny.run(tiny.config({"train.steps=2", "train.save_every=1"}), tiny.folder(), at::kFloat, spoil_second_step);
  EXPECT_EQ(outcome.skipped, 1);
  EXPECT_TRUE(std::isfinite(outcome.loss));
  EXPECT_EQ(count_differences(checkpoint_tensors(tiny.folder(), 1), checkpoint_tensors(tiny.folder(), 2)), 0);
  EXPECT_EQ(load_checkpoint(checkpoint_path(tiny.folder() / "checkpoints", 2)).state.at("skipped"), 1);
}

TEST(Trainer, TooManyNonFiniteStepsEndTheRun) {
  const TinyRun tiny("giveup");
  const auto spoil = [](int64_t call, at::Tensor& hidden) {
    if (call > 2) hidden.fill_(std::nan(""));
  };
  EXPECT_THROW(tiny.run(tiny.config({"train.max_skipped=2"}), tiny.folder(), at::kFloat, spoil), NonFiniteError);
}

TEST(Trainer, AnotherConfigurationIsNamedAndRefused) {
  const TinyRun tiny("refused");
  tiny.run(tiny.config({"train.steps=2"}), tiny.folder());
  const std::string text = message_of<UserError>([&] { tiny.run(tiny.config({"train.steps=4", "train.lr=0.5", "quantize.format=fp8"}), tiny.folder()); });
  EXPECT_TRUE(contains(text, "train.lr: was 0.01, is 0.5")) << text;
  EXPECT_TRUE(contains(text, "quantize.format: was \"w4a16\", is \"fp8\"")) << text;
  EXPECT_FALSE(contains(text, "train.steps")) << text;   // free under a constant schedule
  const TrainOutcome longer = tiny.run(tiny.config({"train.steps=3", "train.log_every=1", "train.keep_last=7"}), tiny.folder());
  EXPECT_EQ(longer.resumed_from, 2);
}

TEST(Trainer, AnotherModelOrDataIsNamedAndRefused) {
  const TinyRun tiny("identity");
  const Config config = tiny.config({"train.steps=2"});
  tiny.run(config, tiny.folder());
  const auto decoder = tiny.decoder(config, at::kFloat);
  SelfTeacher teacher(*decoder);
  TrainInputs inputs = tiny.inputs(*decoder, teacher, config, tiny.folder());
  inputs.identity.data = "other";
  const std::string text = message_of<DataError>([&] { train(inputs); });
  EXPECT_TRUE(contains(text, "the training data: was uneven16, is other")) << text;
  EXPECT_FALSE(contains(text, "the model")) << text;
}

TEST(Trainer, ResumeModes) {
  const TinyRun tiny("modes");
  tiny.run(tiny.config({"train.save_every=2"}), tiny.folder());
  const std::string never = message_of<UserError>([&] { tiny.run(tiny.config({"train.resume=never"}), tiny.folder()); });
  EXPECT_TRUE(contains(never, "move that folder aside")) << never;
  const std::string absent = message_of<UserError>([&] { tiny.run(tiny.config({"train.resume=3"}), tiny.folder()); });
  EXPECT_TRUE(contains(absent, "steps 4, 6")) << absent;
  const auto before = checkpoint_tensors(tiny.folder(), 6);
  EXPECT_EQ(tiny.run(tiny.config({"train.resume=4"}), tiny.folder()).resumed_from, 4);
  EXPECT_EQ(count_differences(before, checkpoint_tensors(tiny.folder(), 6)), 0);
}

TEST(Trainer, KeepsTheBestAndTheNewest) {
  const TinyRun tiny("keep");
  // After step 2 the learning rate is so high that validation gets worse: step 1 or 2 stays the best.
  const Config config = tiny.config({"train.save_every=1", "train.validate_every=1", "train.keep_last=1", "train.keep_every=4", "train.lr=3", "train.warmup=6",
                                     "train.clip=0"});
  const TrainOutcome outcome = tiny.run(config, tiny.folder());
  std::vector<int64_t> expected = {4, 6};
  if (outcome.best_step != 4 && outcome.best_step != 6) expected.insert(expected.begin() + (outcome.best_step > 4), outcome.best_step);
  EXPECT_LT(outcome.best_step, 6);
  EXPECT_EQ(list_checkpoints(tiny.folder() / "checkpoints"), expected);
}

TEST(Trainer, CallbackSeesEveryCheckpointBeforeOldOnesGo) {
  const TinyRun tiny("callback");
  const Config config = tiny.config({"train.save_every=2", "train.keep_last=1"});
  const auto decoder = tiny.decoder(config, at::kFloat);
  SelfTeacher teacher(*decoder);
  TrainInputs inputs = tiny.inputs(*decoder, teacher, config, tiny.folder());
  std::vector<int64_t> seen;
  inputs.on_checkpoint = [&](int64_t step) {
    seen.push_back(step);
    EXPECT_FALSE(checkpoint_tensors(tiny.folder(), step).empty());
  };
  inputs.pinned = [] { return std::vector<int64_t>{2}; };
  train(inputs);
  EXPECT_EQ(seen, (std::vector<int64_t>{2, 4, 6}));
  EXPECT_EQ(list_checkpoints(tiny.folder() / "checkpoints"), (std::vector<int64_t>{2, 6}));
}

TEST(Trainer, McoreQadLeavesItsFiles) {
  const TinyRun tiny("angelslim");
  const Config config = tiny.config({"quantize.format=nvfp4", "quantize.numerics=mcore_qad", "output.style=angelslim", "train.steps=2", "train.save_every=1"});
  const TrainOutcome outcome = tiny.run(config, tiny.folder());
  EXPECT_TRUE(outcome.validation_before.empty());
  for (const char* name : {"scales_rank0_step1.safetensors", "scales_rank0_step2.safetensors", "scales_rank0.safetensors", "angelslim_config.json"})
    EXPECT_TRUE(std::filesystem::exists(tiny.folder() / name)) << name;
  const auto decoder = tiny.decoder(config, at::kFloat);
  decoder->load_quantizer_state(read_scales(tiny.folder() / "scales_rank0.safetensors"), "scales_rank0.safetensors");
  EXPECT_EQ(count_differences(read_scales(tiny.folder()), decoder->quantizer_state()), 0);
}

TEST(InitScales, MissingAndForeignKeysAreErrors) {
  const TinyRun tiny("scales");
  const auto decoder = tiny.decoder(tiny.config(), at::kFloat);
  std::map<std::string, at::Tensor> scales = decoder->quantizer_state();
  scales["alpha/layers.9.qkv"] = scales.at("alpha/layers.0.qkv");
  scales.erase("alpha/layers.0.qkv");
  save_tensors(tiny.folder() / "scales.safetensors", scales);
  const std::string text =
      message_of<DataError>([&] { decoder->load_quantizer_state(read_scales(tiny.folder() / "scales.safetensors"), "scales.safetensors"); });
  EXPECT_TRUE(contains(text, "alpha/layers.0.qkv") && contains(text, "alpha/layers.9.qkv")) << text;
}

TEST(InitScales, APickleIsRefusedWithTheReason) {
  const TinyRun tiny("pickle");
  write_file_atomic(tiny.folder() / "scales_rank0.pt", "anything");
  write_file_atomic(tiny.folder() / "zip", std::string("PK\x03\x04 and more", 13));
  write_file_atomic(tiny.folder() / "plain", std::string("\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c", 12));
  for (const char* name : {"scales_rank0.pt", "zip", "plain"}) {
    const std::string text = message_of<DataError>([&] { read_scales(tiny.folder() / name); });
    EXPECT_TRUE(contains(text, "runs whatever code")) << text;
  }
  EXPECT_TRUE(contains(message_of<DataError>([&] { read_scales(tiny.folder()); }), "neither a run"));
  EXPECT_TRUE(contains(message_of<DataError>([&] { read_scales(tiny.folder() / "absent"); }), "no such file"));
}

}  // namespace
}  // namespace scalewright
