#include "model/quant_plan.h"

#include "tiny_model.h"

namespace scalewright {
namespace {

std::vector<ProjectionSpec> mixed_specs() { return projections(read_model_config(reference_folder("qwen3_moe_mixed"))); }

std::vector<std::string> planned(const QuantPlan& plan) {
  std::vector<std::string> names;
  for (const auto& [name, format] : plan.formats) names.push_back(name);
  return names;
}

TEST(QuantPlan, OneFormatForAll) {
  QuantizeSection quantize;
  quantize.format = "w4afp8";
  quantize.w4afp8_rounding = "vllm";
  const QuantPlan plan = make_quant_plan(quantize, true, mixed_specs());
  EXPECT_EQ(plan.formats.size(), 8u);
  for (const auto& [name, format] : plan.formats) EXPECT_EQ(format->name, "w4afp8") << name;
  EXPECT_EQ(plan.numerics, Numerics::kDeploy);
  EXPECT_TRUE(plan.vllm_w4afp8_rounding);
  EXPECT_TRUE(plan.learn_activation_scales);
}

TEST(QuantPlan, ExpertsOnly) {
  QuantizeSection quantize;
  quantize.experts_only = true;
  EXPECT_EQ(planned(make_quant_plan(quantize, false, mixed_specs())), (std::vector<std::string>{"layers.1.down.experts", "layers.1.gate_up.experts"}));
}

TEST(QuantPlan, AFusedGroupIsSkippedWhole) {
  QuantizeSection quantize;
  quantize.skip = {"model.layers.0.self_attn.k_proj", "*.experts.3.down_proj"};
  EXPECT_EQ(planned(make_quant_plan(quantize, false, mixed_specs())),
            (std::vector<std::string>{"layers.0.down", "layers.0.gate_up", "layers.0.o", "layers.1.gate_up.experts", "layers.1.o", "layers.1.qkv"}));
}

TEST(QuantPlan, APatternWithoutAMatchIsAnError) {
  QuantizeSection quantize;
  quantize.skip = {"*.q_proj", "model.layers.7.*"};
  expect_error<UserError>([&] { make_quant_plan(quantize, false, mixed_specs()); },
                          {"quantize.skip", "\"model.layers.7.*\"", "model.layers.0.self_attn.q_proj"});
}

TEST(QuantPlan, NothingLeftIsAnError) {
  QuantizeSection quantize;
  quantize.skip = {"*"};
  expect_error<UserError>([&] { make_quant_plan(quantize, false, mixed_specs()); }, {"nothing is left", "quantize.skip (*)"});
  quantize.skip = {};
  quantize.experts_only = true;
  const auto dense = projections(read_model_config(reference_folder("llama")));
  expect_error<UserError>([&] { make_quant_plan(quantize, false, dense); }, {"nothing is left", "no routed experts"});
}

TEST(QuantPlan, AnInDimensionMustHoldWholeGroups) {
  ModelConfig config = read_model_config(reference_folder("qwen3_moe"));
  config.expert_intermediate = 72;
  QuantizeSection quantize;   // nvfp4: groups of 16
  expect_error<DataError>([&] { make_quant_plan(quantize, false, projections(config)); },
                          {"nvfp4", "multiples of 16", "model.layers.0.mlp.experts.0.down_proj has 72", "2 modules"});
  quantize.format = "w8a8";   // no groups
  EXPECT_EQ(make_quant_plan(quantize, false, projections(config)).formats.size(), 8u);
  quantize.format = "w4a16";
  quantize.skip = {"*down_proj"};
  EXPECT_EQ(make_quant_plan(quantize, false, projections(config)).formats.size(), 6u);
}

TEST(QuantPlan, UnknownNamesAreRefused) {
  QuantizeSection quantize;
  quantize.format = "nvpf4";
  expect_error<UserError>([&] { make_quant_plan(quantize, false, mixed_specs()); }, {"nvpf4", "nvfp4"});
}

}  // namespace
}  // namespace scalewright
