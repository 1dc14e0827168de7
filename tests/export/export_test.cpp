// Exports of the reference models: bytes that repeat, round trips in all formats, and verification that notices every change.
#include <gtest/gtest.h>

#include "base/error.h"
#include "export/export.h"
#include "export/loader_rules.h"
#include "export/quantized_folder.h"
#include "export/verify.h"
#include "model/decoder.h"
#include "store/files.h"

namespace scalewright {
namespace {

constexpr const char* kFormats[] = {"nvfp4", "nvfp4a16", "w4a16", "w8a8", "fp8", "w4afp8"};

/// A folder that goes with the test.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "export_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Scratch() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// A reference model with a plan and trained-looking quantizer state.
struct Trained {
  explicit Trained(const std::string& reference, const char* format, const std::vector<std::string>& skip = {})
      : folder(fs::path(SCALEWRIGHT_TEST_DATA) / "reference" / reference), config(read_model_config(folder)), weights(folder, config),
        specs(projections(config)) {
    QuantizeSection section;
    section.format = format;
    section.skip = skip;
    plan = make_quant_plan(section, false, specs);
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(17);
    for (const ProjectionSpec& spec : specs) {
      if (!plan.formats.count(spec.name)) continue;
      const TensorFormat& weight = plan.formats.at(spec.name)->weight;
      const int64_t groups = weight.group ? spec.columns / weight.group : 1;
      state["alpha/" + spec.name] = at::rand({spec.experts, spec.rows, groups}, generator) * 0.4 + 0.8;
      if (!plan.formats.at(spec.name)->activation || weight.layout != ScaleLayout::kTwoLevelBlock) continue;
      state["alpha/" + spec.input_name] = at::rand({1}, generator) * 0.4 + 0.8;
      state["ref/" + spec.input_name] = at::rand({1}, generator) * 0.01 + 0.001;
    }
  }

  ExportReport write(const fs::path& out, int64_t shard_bytes = 5'000'000'000) {
    Log log(0, LogLevel::kError);
    return export_checkpoint(config, weights, plan, state, out, {shard_bytes}, log);
  }
  VerifyReport verify(const fs::path& out) { return verify_export(config, weights, plan, state, out); }

  fs::path folder;
  ModelConfig config;
  ModelWeights weights;
  std::vector<ProjectionSpec> specs;
  QuantPlan plan;
  QuantizerState state;
};

TEST(Export, EveryFormatAndModelRereadsAsTrained) {
  for (const char* reference : {"qwen3_moe_mixed", "hy_v3", "qwen2"})
    for (const char* format : kFormats) {
      Scratch scratch;
      Trained trained(reference, format);
      trained.write(scratch.path() / "out");
      const VerifyReport report = trained.verify(scratch.path() / "out");
      EXPECT_TRUE(report.ok()) << reference << " " << format << ": " << report.faults.front();
      const QuantizedFolder folder(scratch.path() / "out", read_model_config(scratch.path() / "out", QuantizedConfig::kAllowed));
      EXPECT_EQ(folder.format().name, format);
      EXPECT_TRUE(folder.faults().empty()) << folder.faults().front();
    }
}

TEST(Export, OpenedFolderHasTheStudentsWeights) {
  for (const char* format : kFormats) {
    Scratch scratch;
    Trained trained("qwen3_moe", format);
    trained.write(scratch.path() / "out");
    const QuantizedFolder folder(scratch.path() / "out", trained.config);
    for (const ProjectionSpec& spec : trained.specs) {
      const at::Tensor w = trained.weights.stacked(spec);
      WeightQuantizer quantizer(spec.name, folder.format().weight, Numerics::kDeploy, w, Compute{}, trained.weights.dtype());
      {
        at::NoGradGuard no_grad;
        quantizer.alpha().copy_(trained.state.at("alpha/" + spec.name));
      }
      EXPECT_TRUE(at::equal(folder.weight(spec), quantizer.fake_quantize(w, at::kFloat))) << format << " " << spec.name;
    }
  }
}

TEST(Export, SkippedProjectionsStayAndAreIgnored) {
  Scratch scratch;
  Trained trained("qwen3_moe", "fp8", {"model.layers.0.self_attn.*"});
  trained.write(scratch.path() / "out");
  EXPECT_TRUE(trained.verify(scratch.path() / "out").ok());
  const Json ignore = read_json(scratch.path() / "out" / "config.json")["quantization_config"]["ignore"];
  for (const char* module : {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj", "model.layers.1.mlp.gate", "lm_head"})
    EXPECT_NE(std::find(ignore.begin(), ignore.end(), module), ignore.end()) << module;
  EXPECT_EQ(std::find(ignore.begin(), ignore.end(), "model.layers.1.self_attn.q_proj"), ignore.end());
}

TEST(Export, SameInputSameBytesInAnyNumberOfThreads) {
  Scratch scratch;
  Trained trained("qwen3_moe", "nvfp4");
  trained.write(scratch.path() / "a", 200'000);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const ExportReport report = trained.write(scratch.path() / "b", 200'000);
  at::set_num_threads(threads);
  EXPECT_GT(report.shards, 3);
  int64_t files = 0;
  for (const auto& entry : fs::directory_iterator(scratch.path() / "a")) {
    EXPECT_EQ(read_file(entry.path()), read_file(scratch.path() / "b" / entry.path().filename())) << entry.path().filename();
    ++files;
  }
  EXPECT_EQ(files, report.shards + 3);   // config.json, generation_config.json, index
  EXPECT_TRUE(trained.verify(scratch.path() / "b").ok());
}

TEST(Export, EveryExpertHasOnePositiveInputScaleAndFusedShardsShareGlobals) {
  Scratch scratch;
  Trained trained("qwen3_moe", "nvfp4");
  trained.write(scratch.path() / "out");
  const ExportedTensors tensors(scratch.path() / "out");
  const std::string experts = "model.layers.0.mlp.experts.";
  const float first = tensors.tensor(experts + "0.gate_proj.input_global_scale").item<float>();
  EXPECT_GT(first, 0);
  for (int64_t e = 0; e < trained.config.experts; ++e) {
    const std::string expert = experts + std::to_string(e);
    EXPECT_EQ(tensors.tensor(expert + ".gate_proj.input_global_scale").item<float>(), first);
    EXPECT_EQ(tensors.tensor(expert + ".up_proj.input_global_scale").item<float>(), first);
    EXPECT_EQ(tensors.tensor(expert + ".gate_proj.weight_global_scale").item<float>(), tensors.tensor(expert + ".up_proj.weight_global_scale").item<float>());
  }
}

/// Rewrites one tensor of an export, or removes it with an undefined value.
void tamper(const fs::path& out, const std::string& name, const std::function<at::Tensor(at::Tensor)>& change) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [key, tensor] : load_tensors(out / "model.safetensors")) copies[key] = tensor.clone();
  const at::Tensor changed = change(copies.at(name));
  if (changed.defined()) copies[name] = changed;
  else copies.erase(name);
  save_tensors(out / "model.safetensors", copies, {{"format", "pt"}});
}

TEST(Verify, NoticesEveryKindOfChange) {
  const std::string module = "model.layers.0.mlp.experts.3.down_proj";
  struct Change {
    const char* format;
    std::string name;
    std::function<at::Tensor(at::Tensor)> change;
    const char* said;
  };
  const auto flip = [](at::Tensor t) {
    t.view(at::kByte).view(-1)[5].bitwise_xor_(1);
    return t;
  };
  const auto drop = [](at::Tensor) { return at::Tensor(); };
  const std::vector<Change> changes = {
      {"nvfp4", module + ".weight_packed", flip, "dequantized weights differ"},
      {"nvfp4", module + ".weight_scale", flip, "dequantized weights differ"},
      {"nvfp4", module + ".input_global_scale", drop, "missing"},
      {"nvfp4", module + ".input_global_scale", [](at::Tensor t) { return t * 2.0; }, "differs from the trained input scale"},
      {"nvfp4", module + ".weight_global_scale", [](at::Tensor t) { return t * 0.0; }, "zero, negative or not finite"},
      {"w4a16", module + ".weight_shape", [](at::Tensor t) { return t + 1; }, "expected"},
      {"w4a16", module + ".weight_scale", [](at::Tensor t) { return t.to(at::kFloat); }, "expected BF16"},
      {"fp8", module + ".weight", flip, "dequantized weights differ"},
      {"w8a8", "model.norm.weight", flip, "differs from the model's"},
  };
  for (const Change& c : changes) {
    Scratch scratch;
    Trained trained("qwen3_moe", c.format);
    const fs::path out = scratch.path() / "out";
    trained.write(out);
    tamper(out, c.name, c.change);
    const VerifyReport report = trained.verify(out);
    ASSERT_FALSE(report.ok()) << c.format << " " << c.name;
    EXPECT_NE(report.faults.front().find(c.said), std::string::npos) << report.faults.front();
    EXPECT_NE(report.faults.front().find(c.name.substr(0, c.name.rfind('.'))), std::string::npos) << report.faults.front();
  }
}

TEST(Verify, NoticesAnIgnoreListThatIsNotComplete) {
  Scratch scratch;
  Trained trained("qwen3_moe", "fp8");
  const fs::path out = scratch.path() / "out";
  trained.write(out);
  Json config = read_json(out / "config.json");
  config["quantization_config"]["ignore"] = Json::array({"model.layers.0.mlp.gate", "model.layers.1.mlp.gate"});
  write_file_atomic(out / "config.json", config.dump());
  EXPECT_FALSE(trained.verify(out).ok());
  const std::vector<std::string> faults = QuantizedFolder(out, trained.config).faults();
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("lm_head.weight: neither quantized nor in the ignore list"), std::string::npos) << faults[0];
}

TEST(Verify, RefusesFoldersThatItDoesNotKnow) {
  Trained trained("qwen3", "fp8");
  EXPECT_THROW(QuantizedFolder(trained.folder, trained.config), DataError);   // the BF16 model itself
  Scratch scratch;
  const fs::path out = scratch.path() / "out";
  trained.write(out);
  Json config = read_json(out / "config.json");
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 4;
  write_file_atomic(out / "config.json", config.dump());
  EXPECT_THROW(QuantizedFolder(out, trained.config), DataError);
}

TEST(LoaderRules, TensorParallelismThatCutsAGroup) {
  Trained trained("qwen3_moe", "w4a16");   // expert intermediate size 128 is one group
  EXPECT_TRUE(tensor_parallel_faults(trained.config, find_format("w4a16"), trained.specs, trained.plan, 1).empty());
  const auto faults = tensor_parallel_faults(trained.config, find_format("w4a16"), trained.specs, trained.plan, 2);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(fmt::format("{}", fmt::join(faults, "\n")).find("which cuts a group of 128"), std::string::npos);
  EXPECT_TRUE(tensor_parallel_faults(trained.config, find_format("fp8"), trained.specs, Trained("qwen3_moe", "fp8").plan, 4).empty());
  EXPECT_FALSE(tensor_parallel_faults(trained.config, find_format("fp8"), trained.specs, Trained("qwen3_moe", "fp8").plan, 8).empty());   // 4 heads
}

TEST(LoaderRules, EnginesSayWhatTheyNeed) {
  Scratch scratch;
  Trained trained("qwen3_moe", "w4afp8");
  trained.write(scratch.path() / "out");
  const QuantizedFolder folder(scratch.path() / "out", trained.config);
  const LoaderReport vllm = check_loader(trained.config, folder, Engine::kVllm, 1);
  EXPECT_FALSE(vllm.ok());   // hidden 128 is not a multiple of 256
  EXPECT_EQ(vllm.largest_tp, 1);
  ASSERT_EQ(vllm.warnings.size(), 1u);
  EXPECT_NE(vllm.warnings[0].find("re-rounds group scales"), std::string::npos);
  const LoaderReport sglang = check_loader(trained.config, folder, Engine::kSglang, 1);
  EXPECT_FALSE(sglang.ok());   // dense W4AFP8
  EXPECT_FALSE(check_loader(trained.config, folder, Engine::kTrtllm, 1).ok());
  EXPECT_THROW(find_engine("vlm"), UserError);
}

TEST(LoaderRules, ReroundingIsNothingWhereTrainingAlreadyDidIt) {
  Scratch scratch;
  Trained trained("qwen3_moe", "w4afp8");
  trained.write(scratch.path() / "plain");
  const ReroundingEffect plain = vllm_w4afp8_effect(QuantizedFolder(scratch.path() / "plain", trained.config));
  trained.plan.vllm_w4afp8_rounding = true;
  trained.write(scratch.path() / "vllm");
  EXPECT_TRUE(trained.verify(scratch.path() / "vllm").ok());
  const ReroundingEffect rounded = vllm_w4afp8_effect(QuantizedFolder(scratch.path() / "vllm", trained.config));
  EXPECT_LE(rounded.largest_scale_change, std::ldexp(1.0, -8));   // bfloat16's rounding of the stored scale
  EXPECT_LE(rounded.weight_error, plain.weight_error + std::ldexp(1.0, -8));
}

}  // namespace
}  // namespace scalewright
