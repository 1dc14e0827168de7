#include "model/weights.h"

#include "tiny_model.h"

namespace scalewright {
namespace {

const std::vector<std::string> kReferences{"qwen3_moe", "qwen3_moe_deep", "qwen3_moe_mixed", "hy_v3", "qwen3", "qwen2", "llama"};

void expect_same_stacks(const ModelWeights& got, const ModelWeights& want, const ModelConfig& config) {
  for (const ProjectionSpec& spec : projections(config)) EXPECT_TRUE(at::equal(got.stacked(spec), want.stacked(spec))) << spec.name;
}

/// `model` loads to the same weights as the reference that it was made from.
void expect_equivalent(const TinyModel& model, const std::string& reference) {
  const Scratch scratch;
  model.write(scratch.path());
  const ModelWeights got = load_weights(scratch.path()), want = load_weights(reference_folder(reference));
  expect_same_stacks(got, want, read_model_config(reference_folder(reference)));
  ASSERT_EQ(got.unquantized().size(), want.unquantized().size());
  for (const auto& tensor : want.unquantized()) {
    EXPECT_TRUE(at::equal(got.unquantized_tensor(tensor.name), want.unquantized_tensor(tensor.name))) << tensor.name;
  }
}

std::vector<std::string> unquantized_names(const ModelWeights& weights) {
  std::vector<std::string> names;
  for (const auto& tensor : weights.unquantized()) names.push_back(tensor.name);
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); }

TEST(Weights, EveryReferenceModelLoads) {
  for (const std::string& reference : kReferences) {
    SCOPED_TRACE(reference);
    const TinyModel model(reference);
    const ModelConfig config = read_model_config(reference_folder(reference));
    const ModelWeights weights = load_weights(reference_folder(reference));
    EXPECT_EQ(weights.dtype(), at::kBFloat16);
    std::size_t stored = 0;
    for (const ProjectionSpec& spec : projections(config)) {
      const at::Tensor stack = weights.stacked(spec);
      EXPECT_EQ(stack.sizes(), at::IntArrayRef({spec.experts, spec.rows, spec.columns}));
      for (const Piece& piece : spec.pieces) {
        EXPECT_TRUE(at::equal(stack[piece.expert].slice(0, piece.row_begin, piece.row_end), model.tensors.at(piece.module + ".weight"))) << piece.module;
      }
      stored += spec.pieces.size();
    }
    EXPECT_EQ(stored + weights.unquantized().size(), model.tensors.size());
    for (const auto& tensor : weights.unquantized()) {
      EXPECT_TRUE(at::equal(weights.unquantized_tensor(tensor.name), model.tensors.at(tensor.name))) << tensor.name;
    }
    EXPECT_EQ(weights.tensor("lm_head.weight").sizes(), at::IntArrayRef({config.vocabulary, config.hidden}));
  }
}

TEST(Weights, BiasesAreStackedAndUnquantized) {
  const TinyModel model("qwen2");
  const ModelWeights weights = load_weights(reference_folder("qwen2"));
  const auto specs = projections(read_model_config(reference_folder("qwen2")));
  const std::string prefix = "model.layers.0.self_attn.";
  const at::Tensor want = at::cat({model.tensors.at(prefix + "q_proj.bias"), model.tensors.at(prefix + "k_proj.bias"), model.tensors.at(prefix + "v_proj.bias")});
  EXPECT_TRUE(at::equal(weights.stacked_bias(specs[0]), want.view({1, -1})));
  EXPECT_FALSE(weights.stacked_bias(specs[1]).defined());
  EXPECT_TRUE(contains(unquantized_names(weights), prefix + "q_proj.bias"));
}

TEST(Weights, FusedExpertsAreTheSame) {
  for (const char* suffix : {"", ".weight"}) {
    TinyModel model("qwen3_moe");
    model.fuse_experts(0, 8, suffix);
    model.fuse_experts(1, 8, suffix);
    expect_equivalent(model, "qwen3_moe");
  }
  TinyModel hy("hy_v3");
  hy.fuse_experts(1, 8);
  expect_equivalent(hy, "hy_v3");
}

TEST(Weights, NamesWithoutPrefixAreTheSame) {
  TinyModel model("qwen3_moe_mixed");
  std::map<std::string, at::Tensor> bare;
  for (const auto& [name, tensor] : model.tensors) bare.emplace(name.substr(std::string("model.").size()), tensor);
  model.tensors = bare;
  expect_equivalent(model, "qwen3_moe_mixed");
}

TEST(Weights, AliasesOfHyV3AreTheSameAndWrittenAsTheHubDoes) {
  TinyModel model("hy_v3");
  model.replace_in_names("mlp.router.gate.weight", "mlp.gate.weight");
  model.replace_in_names("mlp.expert_bias", "mlp.e_score_correction_bias");
  model.replace_in_names("mlp.shared_mlp.", "mlp.shared_experts.");
  expect_equivalent(model, "hy_v3");
  model.replace_in_names("mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias");
  expect_equivalent(model, "hy_v3");
  const Scratch scratch;
  model.write(scratch.path());
  const ModelWeights weights = load_weights(scratch.path());
  const auto names = unquantized_names(weights);
  EXPECT_TRUE(contains(names, "model.layers.1.mlp.router.gate.weight"));
  EXPECT_TRUE(contains(names, "model.layers.1.mlp.expert_bias"));
  EXPECT_EQ(weights.tensor("model.layers.1.mlp.gate.weight").scalar_type(), at::kFloat);
  EXPECT_EQ(weights.unquantized_linear_modules(), (std::vector<std::string>{"lm_head", "model.layers.1.mlp.router.gate"}));
}

TEST(Weights, ShardsAreTheSameAsOneFile) {
  for (const char* reference : {"qwen3_moe", "hy_v3"}) {
    const Scratch scratch;
    const TinyModel model(reference);
    model.write_sharded(scratch.path(), 3);
    const ModelWeights sharded = load_weights(scratch.path()), single = load_weights(reference_folder(reference));
    expect_same_stacks(sharded, single, read_model_config(scratch.path()));
    EXPECT_EQ(unquantized_names(sharded), unquantized_names(single));
    EXPECT_EQ(sharded.content_hash(), single.content_hash());
  }
}

TEST(Weights, ACacheFolderOfLinksLoads) {
  const Scratch scratch;
  const auto cache = scratch.path() / "models--org--name";
  const auto blobs = cache / "blobs", snapshot = cache / "snapshots" / "0123abcd";
  for (const auto& folder : {blobs, snapshot, cache / "refs"}) std::filesystem::create_directories(folder);
  write_text(cache / "refs" / "main", "0123abcd");
  TinyModel("qwen3_moe").write_sharded(blobs, 2);
  for (const auto& entry : std::filesystem::directory_iterator(blobs)) {
    std::filesystem::create_symlink(std::filesystem::path("../../blobs") / entry.path().filename(), snapshot / entry.path().filename());
  }
  const ModelWeights cached = load_weights(resolve_model_folder(cache)), single = load_weights(reference_folder("qwen3_moe"));
  EXPECT_EQ(cached.content_hash(), single.content_hash());
}

TEST(Weights, TheHashSeesEveryBit) {
  const Scratch scratch;
  TinyModel model("qwen3");
  at::Tensor& norm = model.tensors.at("model.norm.weight");
  norm = norm.clone();
  norm[5] = norm[5] * 2;
  model.write(scratch.path());
  EXPECT_NE(load_weights(scratch.path()).content_hash(), load_weights(reference_folder("qwen3")).content_hash());
}

TEST(Weights, ATiedHeadMayBeStoredIfItIsTheEmbedding) {
  TinyModel model("qwen3");
  model.tensors["lm_head.weight"] = model.tensors.at("model.embed_tokens.weight");
  expect_equivalent(model, "qwen3");
  const ModelWeights weights = load_weights(reference_folder("qwen3"));
  EXPECT_TRUE(weights.has("lm_head.weight"));
  EXPECT_TRUE(at::equal(weights.tensor("lm_head.weight"), weights.tensor("model.embed_tokens.weight")));
  EXPECT_FALSE(contains(unquantized_names(weights), "lm_head.weight"));
  EXPECT_EQ(weights.unquantized_linear_modules(), (std::vector<std::string>{"lm_head"}));

  model.tensors["lm_head.weight"] = model.tensors.at("model.embed_tokens.weight") * 2;
  const Scratch scratch;
  model.write(scratch.path());
  expect_error<DataError>([&] { load_weights(scratch.path()); }, {"tie_word_embeddings", "lm_head.weight (in model.safetensors)", "differs"});
}

TEST(Weights, ExtraLayersPassThroughAndRotaryBuffersAreDropped) {
  TinyModel model("qwen3_moe");
  const at::Tensor linear = at::ones({4, 6}, at::kBFloat16), vector = at::ones({6}, at::kFloat);
  model.tensors["model.layers.2.eh_proj.weight"] = linear;
  model.tensors["model.layers.2.enorm.weight"] = vector;
  model.tensors["mtp.fc.weight"] = linear;
  model.tensors["model.mtp.layers.0.norm.weight"] = vector;
  model.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = vector;
  const Scratch scratch;
  model.write(scratch.path());
  const ModelWeights weights = load_weights(scratch.path());
  const auto names = unquantized_names(weights);
  for (const char* name : {"model.layers.2.eh_proj.weight", "model.layers.2.enorm.weight", "mtp.fc.weight", "model.mtp.layers.0.norm.weight"}) {
    EXPECT_TRUE(contains(names, name)) << name;
  }
  EXPECT_FALSE(contains(names, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_TRUE(at::equal(weights.unquantized_tensor("mtp.fc.weight"), linear));
  EXPECT_EQ(weights.unquantized_linear_modules(), (std::vector<std::string>{"lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate",
                                                                            "model.layers.2.eh_proj", "mtp.fc"}));
}

TEST(Weights, OtherFloatDtypesKeepTheirs) {
  for (const at::ScalarType dtype : {at::kHalf, at::kFloat}) {
    TinyModel model("qwen3");
    for (auto& [name, tensor] : model.tensors) tensor = tensor.to(dtype);
    const Scratch scratch;
    model.write(scratch.path());
    const ModelWeights weights = load_weights(scratch.path());
    EXPECT_EQ(weights.dtype(), dtype);
    const auto spec = projections(read_model_config(scratch.path())).front();
    EXPECT_TRUE(at::equal(weights.stacked(spec)[0].slice(0, 0, 128), model.tensors.at("model.layers.0.self_attn.q_proj.weight")));
  }
}

}  // namespace
}  // namespace scalewright
