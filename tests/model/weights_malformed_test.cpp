// Weights that do not fit: each is refused with the file, the tensor and the cause.
#include "tiny_model.h"

namespace scalewright {
namespace {

const std::string kQ = "model.layers.0.self_attn.q_proj.weight";
const std::string kExpert = "model.layers.1.mlp.experts.3.up_proj.weight";

void expect_refused(const TinyModel& model, const std::vector<std::string>& parts) {
  const Scratch scratch;
  model.write(scratch.path());
  expect_error<DataError>([&] { load_weights(scratch.path()); }, parts);
}

TEST(WeightsMalformed, EverythingMissingAndLeftOverIsListedAtOnce) {
  TinyModel model("qwen3_moe");
  model.tensors.erase("model.norm.weight");
  model.rename(kQ, "model.layers.0.self_attn.Q_proj.weight");
  model.rename(kExpert, "model.layers.1.mlp.experts.8.up_proj.weight");
  expect_refused(model, {"qwen3_moe with 2 layers", "missing (3):", "model.norm.weight", kQ, kExpert, "left over (2):",
                         "model.layers.0.self_attn.Q_proj.weight (in model.safetensors)", "experts.8.up_proj"});
}

TEST(WeightsMalformed, LongListsShowTwentyAndTheCount) {
  TinyModel model("qwen3_moe");
  model.config["num_local_experts"] = 16;   // 8 experts x 3 weights x 2 layers are missing
  const Scratch scratch;
  model.write(scratch.path());
  expect_error<DataError>([&] { load_weights(scratch.path()); }, {"missing (48):", "and 28 more", "wrong shape (2):", "mlp.gate.weight", "[8, 128]", "[16, 128]"});
}

TEST(WeightsMalformed, TooFewOrTooManyLayers) {
  TinyModel fewer("qwen3_moe");
  fewer.config["num_hidden_layers"] = 3;
  expect_refused(fewer, {"3 layers", "missing", "model.layers.2.input_layernorm.weight"});
  TinyModel named("qwen3_moe");
  named.rename(kQ, "model.layers.00.self_attn.q_proj.weight");
  expect_refused(named, {"left over (1):", "model.layers.00"});
}

TEST(WeightsMalformed, WrongShapesAreGivenWithTheRightOnes) {
  TinyModel model("qwen3_moe");
  model.tensors[kQ] = model.tensors.at(kQ).slice(0, 0, 64);
  model.tensors["model.norm.weight"] = at::ones({1, 128}, at::kBFloat16);
  expect_refused(model, {"wrong shape (2):", kQ + " (in model.safetensors) is [64, 128]; expected [128, 128]", "model.norm.weight", "[1, 128]; expected [128]"});
  TinyModel fused("qwen3_moe");
  fused.fuse_experts(0, 8);
  at::Tensor& gate_up = fused.tensors.at("model.layers.0.mlp.experts.gate_up_proj");
  gate_up = gate_up.transpose(1, 2).contiguous();
  expect_refused(fused, {"wrong shape (1):", "experts.gate_up_proj", "[8, 128, 256]; expected [8, 256, 128]"});
}

TEST(WeightsMalformed, DtypesThatAreNotFloat) {
  TinyModel model("qwen3_moe");
  model.tensors[kQ] = model.tensors.at(kQ).to(at::kFloat8_e4m3fn);
  expect_refused(model, {"wrong dtype (1):", kQ, "F8_E4M3", "quantized already"});
  TinyModel mixed("qwen3_moe");
  mixed.tensors[kQ] = mixed.tensors.at(kQ).to(at::kFloat);
  expect_refused(mixed, {"different dtypes", kQ, "F32", "BF16"});
}

TEST(WeightsMalformed, AQuantizedCheckpointIsRecognised) {
  TinyModel model("qwen3_moe");
  model.rename(kQ, "model.layers.0.self_attn.q_proj.weight_packed");
  model.tensors["model.layers.0.self_attn.q_proj.weight_scale"] = at::ones({128, 8});
  expect_refused(model, {"left over (2):", "quantized already"});
}

TEST(WeightsMalformed, AnUntiedHeadThatIsMissingHasAHint) {
  TinyModel model("qwen3_moe");
  model.tensors.erase("lm_head.weight");
  expect_refused(model, {"missing (1):", "lm_head.weight", "\"tie_word_embeddings\": true"});
}

TEST(WeightsMalformed, TwoNamesOfOneTensor) {
  TinyModel model("hy_v3");
  model.tensors["model.layers.1.mlp.gate.weight"] = model.tensors.at("model.layers.1.mlp.router.gate.weight");
  expect_refused(model, {"there twice (1):", "mlp.gate.weight", "mlp.router.gate.weight"});
  TinyModel fused("qwen3_moe");
  TinyModel both("qwen3_moe");
  fused.fuse_experts(0, 8);
  both.tensors.insert(fused.tensors.begin(), fused.tensors.end());
  expect_refused(both, {"left over (24):", "model.layers.0.mlp.experts.0.gate_proj.weight"});
}

TEST(WeightsMalformed, NonFiniteValuesAreNamedWithTheirPlace) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      TinyModel model("qwen3_moe");
      for (auto& [name, tensor] : model.tensors) tensor = tensor.to(dtype, false, true);
      model.tensors.at(kExpert)[127][126] = value;
      model.tensors.at("model.norm.weight")[3] = value;
      const Scratch scratch;
      model.write(scratch.path());
      const ModelWeights weights = load_weights(scratch.path());
      for (const ProjectionSpec& spec : projections(read_model_config(scratch.path()))) {
        if (spec.name != "layers.1.gate_up.experts") EXPECT_NO_THROW(weights.stacked(spec)) << spec.name;
        else expect_error<DataError>([&] { weights.stacked(spec); }, {"model.safetensors", kExpert, "[127, 126]", std::isnan(value) ? "nan" : "inf"});
      }
      expect_error<DataError>([&] { weights.tensor("model.norm.weight"); }, {"model.norm.weight", "[3]"});
      EXPECT_NO_THROW(weights.tensor("model.embed_tokens.weight"));
    }
  }
}

TEST(WeightsMalformed, ANonFiniteValueInFusedExpertsIsNamedWithItsExpert) {
  TinyModel model("qwen3_moe");
  model.fuse_experts(1, 8);
  model.tensors.at("model.layers.1.mlp.experts.down_proj")[6][5][4] = std::nan("");
  const Scratch scratch;
  model.write(scratch.path());
  const ModelWeights weights = load_weights(scratch.path());
  const auto specs = projections(read_model_config(scratch.path()));
  expect_error<DataError>([&] { weights.stacked(specs.back()); }, {"experts.down_proj", "[6, 5, 4]"});
}

TEST(WeightsMalformed, FoldersWithoutWeights) {
  const Scratch scratch;
  const TinyModel model("qwen3_moe");
  write_text(scratch.path() / "config.json", model.config.dump());
  expect_error<DataError>([&] { load_weights(scratch.path()); }, {scratch.path().string(), "model.safetensors"});
  write_text(scratch.path() / "pytorch_model.bin", "x");
  expect_error<DataError>([&] { load_weights(scratch.path()); }, {"pickles"});
}

class Sharded : public ::testing::Test {
 protected:
  Sharded() : model_("qwen3_moe"), index_(model_.write_sharded(folder(), 3)) {}
  std::filesystem::path folder() const { return scratch_.path(); }
  std::filesystem::path shard(int64_t i) const { return folder() / TinyModel::shard_name(i, 3); }
  void expect_refused(const std::vector<std::string>& parts) {
    expect_error<DataError>([&] { load_weights(folder()); }, parts);
  }

  Scratch scratch_;
  TinyModel model_;
  Json index_;
};

TEST_F(Sharded, AMissingShard) {
  std::filesystem::remove(shard(1));
  expect_refused({folder().string(), "missing (1):", "model-00002-of-00003.safetensors"});
}

TEST_F(Sharded, ATruncatedShard) {
  std::filesystem::resize_file(shard(2), std::filesystem::file_size(shard(2)) - 100);
  expect_refused({"model-00003-of-00003.safetensors"});
  std::filesystem::resize_file(shard(2), 5);
  expect_refused({"model-00003-of-00003.safetensors"});
}

TEST_F(Sharded, AnIndexThatLeadsOutOfTheFolder) {
  for (const char* outside : {"../model.safetensors", "/etc/model.safetensors"}) {
    index_["weight_map"][kQ] = outside;
    TinyModel::write_index(folder(), index_);
    expect_refused({"model.safetensors.index.json", outside});
  }
}

TEST_F(Sharded, AnIndexThatNamesAPickle) {
  index_["weight_map"][kQ] = "pytorch_model.bin";
  TinyModel::write_index(folder(), index_);
  expect_refused({"model.safetensors.index.json", kQ, "pytorch_model.bin"});
}

TEST_F(Sharded, TensorsThatAreNotWhereTheIndexSays) {
  const std::string actual = index_["weight_map"][kQ].get<std::string>();
  const std::string other = TinyModel::shard_name(actual == TinyModel::shard_name(0, 3) ? 1 : 0, 3);
  index_["weight_map"][kQ] = other;
  index_["weight_map"]["model.extra.weight"] = other;
  index_["weight_map"].erase(kExpert);
  TinyModel::write_index(folder(), index_);
  expect_refused({"index.json", "in the wrong shard (1):", kQ + " (should be in " + other + ", is in " + actual + ")", "in no shard (1):", "model.extra.weight",
                  "not in the index (1):", kExpert});
}

TEST_F(Sharded, ATensorInTwoShards) {
  for (int64_t i = 0; i < 2; ++i) {
    auto tensors = load_tensors(shard(i));
    for (auto& [name, tensor] : tensors) tensor = tensor.clone();
    tensors[kQ] = model_.tensors.at(kQ);
    save_tensors(shard(i), tensors);
  }
  expect_refused({"in two shards (1):", kQ, "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"});
}

TEST_F(Sharded, AnIndexWithoutAMap) {
  for (const char* text : {"{}", "[]", "{\"weight_map\": {}}", "{\"weight_map\": {\"a\": 3}}", "{\"weight_map\": "}) {
    write_text(folder() / "model.safetensors.index.json", text);
    expect_refused({"model.safetensors.index.json"});
  }
}

}  // namespace
}  // namespace scalewright
