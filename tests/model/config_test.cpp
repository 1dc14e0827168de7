#include "model/config.h"

#include "tiny_model.h"

namespace scalewright {
namespace {

/// The reference config with a merge patch applied (null removes a key), written and read.
ModelConfig read_patched(const std::string& reference, const Json& patch) {
  const Scratch scratch;
  Json config = read_json(reference_folder(reference) / "config.json");
  // A JSON merge patch cannot write a null, and whole objects are wanted for rope parameters.
  for (const auto& item : patch.items()) {
    if (item.value().is_null()) config.erase(item.key());
    else config[item.key()] = item.value();
  }
  write_text(scratch.path() / "config.json", config.dump(1));
  return read_model_config(scratch.path());
}

void expect_refused(const std::string& reference, const Json& patch, const std::vector<std::string>& parts) {
  SCOPED_TRACE(patch.dump());
  std::vector<std::string> all = parts;
  all.push_back("config.json");
  expect_error<DataError>([&] { read_patched(reference, patch); }, all);
}

TEST(Config, ReadsTheReferenceModels) {
  const ModelConfig moe = read_model_config(reference_folder("qwen3_moe_mixed"));
  EXPECT_EQ(moe.type, ModelType::kQwen3Moe);
  EXPECT_EQ(moe.vocabulary, 384);
  EXPECT_EQ(moe.hidden, 128);
  EXPECT_EQ(moe.heads, 4);
  EXPECT_EQ(moe.kv_heads, 2);
  EXPECT_EQ(moe.head_dim, 32);
  EXPECT_EQ(moe.experts, 8);
  EXPECT_EQ(moe.top_k, 2);
  EXPECT_EQ(moe.expert_intermediate, 128);
  EXPECT_EQ(moe.intermediate, 256);
  EXPECT_EQ(moe.sparse, (std::vector<bool>{false, true}));
  EXPECT_TRUE(moe.tied_head);
  EXPECT_TRUE(moe.qk_norm);
  EXPECT_FALSE(moe.norm_topk_prob);
  EXPECT_EQ(moe.rope.theta, 500000.0);
  EXPECT_TRUE(moe.eos.empty());
  EXPECT_TRUE(read_model_config(reference_folder("qwen3_moe")).norm_topk_prob);

  const ModelConfig hy = read_model_config(reference_folder("hy_v3"));
  EXPECT_EQ(hy.sparse, (std::vector<bool>{false, true}));
  EXPECT_TRUE(hy.sigmoid_router);
  EXPECT_TRUE(hy.norm_topk_prob);
  EXPECT_EQ(hy.router_scaling, 2.826);
  EXPECT_EQ(hy.shared_experts, 1);
  EXPECT_EQ(hy.norm_eps, 1e-5);

  const ModelConfig qwen2 = read_model_config(reference_folder("qwen2"));
  EXPECT_EQ(qwen2.head_dim, 32);   // hidden / heads
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.attention_output_bias);
  EXPECT_FALSE(qwen2.qk_norm);

  const ModelConfig llama = read_model_config(reference_folder("llama"));
  EXPECT_EQ(llama.rope.type, "llama3");
  EXPECT_EQ(llama.rope.original_max_position, 64);
  EXPECT_FALSE(llama.attention_bias);
}

TEST(Config, HubKeysOfQwen3MoeMeanTheSame) {
  const ModelConfig hub = read_patched("qwen3_moe_mixed", {{"num_local_experts", nullptr}, {"num_experts", 8}, {"rope_parameters", nullptr},
                                                           {"rope_theta", 500000}, {"dtype", nullptr}, {"torch_dtype", "bfloat16"}});
  const ModelConfig five = read_model_config(reference_folder("qwen3_moe_mixed"));
  EXPECT_EQ(hub.experts, five.experts);
  EXPECT_EQ(hub.rope.theta, five.rope.theta);
  EXPECT_EQ(hub.rope.type, five.rope.type);
  EXPECT_EQ(hub.dtype, five.dtype);
  EXPECT_EQ(hub.sparse, five.sparse);
}

TEST(Config, HubKeysOfHyV3MeanTheSame) {
  const ModelConfig hub = read_patched("hy_v3", {{"mlp_layer_types", nullptr}, {"first_k_dense_replace", 1}, {"moe_intermediate_size", nullptr},
                                                 {"expert_hidden_dim", {128, 128}}, {"route_norm", true}, {"qk_norm", true},
                                                 {"rope_parameters", nullptr}, {"rope_theta", 11158840.0}, {"moe_router_use_sigmoid", true}});
  EXPECT_EQ(hub.sparse, (std::vector<bool>{false, true}));
  EXPECT_EQ(hub.expert_intermediate, 128);
  EXPECT_EQ(hub.rope.theta, 11158840.0);
}

TEST(Config, SparseLayersOfQwen3Moe) {
  const auto sparse = [](const Json& patch) {
    Json all = patch;
    all["num_hidden_layers"] = 4;
    return read_patched("qwen3_moe", all).sparse;
  };
  EXPECT_EQ(sparse({}), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(sparse({{"decoder_sparse_step", 2}}), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(sparse({{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}}), (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(sparse({{"first_k_dense_replace", 3}}), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(sparse({{"mlp_layer_types", {"sparse", "dense", "sparse", "dense"}}}), (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(sparse({{"num_local_experts", 0}}), (std::vector<bool>{false, false, false, false}));
}

TEST(Config, DefaultsAreThoseOfTransformers) {
  EXPECT_EQ(read_patched("qwen3", {{"head_dim", nullptr}}).head_dim, 128);
  EXPECT_EQ(read_patched("llama", {{"head_dim", nullptr}}).head_dim, 32);
  EXPECT_EQ(read_patched("llama", {{"num_key_value_heads", nullptr}}).kv_heads, 4);
  EXPECT_EQ(read_patched("qwen3_moe", {{"norm_topk_prob", nullptr}}).norm_topk_prob, false);
  EXPECT_EQ(read_patched("qwen3", {{"rope_parameters", nullptr}}).rope.theta, 10000.0);
  EXPECT_EQ(read_patched("hy_v3", {{"rope_parameters", nullptr}}).rope.theta, 11158840.0);
  EXPECT_EQ(read_patched("hy_v3", {{"mlp_layer_types", nullptr}}).sparse, (std::vector<bool>{false, true}));
  EXPECT_FALSE(read_patched("qwen3", {{"tie_word_embeddings", nullptr}}).tied_head);
}

TEST(Config, BiasesAreTheModelsOwn) {
  const ModelConfig llama = read_patched("llama", {{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(llama.attention_bias && llama.attention_output_bias && llama.mlp_bias);
  const ModelConfig qwen3 = read_patched("qwen3", {{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(qwen3.attention_bias && qwen3.attention_output_bias);
  EXPECT_FALSE(qwen3.mlp_bias);   // qwen3 has no such key
}

TEST(Config, StopTokensOfBothFilesWithoutRepetition) {
  const Scratch scratch;
  Json config = read_json(reference_folder("qwen3") / "config.json");
  config["eos_token_id"] = 7;
  write_text(scratch.path() / "config.json", config.dump());
  write_text(scratch.path() / "generation_config.json", R"({"eos_token_id": [9, 7, 3]})");
  EXPECT_EQ(read_model_config(scratch.path()).eos, (std::vector<int64_t>{7, 9, 3}));
}

TEST(Config, ASlidingWindowIsRefusedOnlyWhenItIsUsed) {
  EXPECT_NO_THROW(read_patched("qwen2", {{"sliding_window", 64}, {"layer_types", nullptr}}));
  EXPECT_NO_THROW(read_patched("qwen2", {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 2}, {"layer_types", nullptr}}));
  EXPECT_NO_THROW(read_patched("qwen3_moe", {{"use_sliding_window", true}, {"sliding_window", 512}}));
  expect_refused("qwen2", {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}, {"layer_types", nullptr}},
                 {"use_sliding_window is true", "layers 1 to 1", "64"});
  expect_refused("qwen3_moe", {{"use_sliding_window", true}, {"sliding_window", 64}}, {"layers 0 to 1"});
  expect_refused("qwen3", {{"layer_types", {"full_attention", "sliding_attention"}}}, {"layer_types", "full_attention"});
}

TEST(Config, UnknownModelTypeNamesTheKnownOnesAndTheNearest) {
  expect_refused("qwen3_moe", {{"model_type", "qwen3_mo"}}, {":", "model_type is \"qwen3_mo\"", "hy_v3, llama, qwen2, qwen3, qwen3_moe", "nearest is qwen3_moe"});
  expect_refused("qwen3_moe", {{"model_type", nullptr}}, {"model_type is missing"});
}

TEST(Config, WrongKeysAreNamedWithLineValueAndWhatIsAllowed) {
  expect_refused("qwen3_moe", {{"hidden_size", nullptr}}, {"hidden_size is missing", "an integer from 1"});
  expect_refused("qwen3_moe", {{"hidden_size", nullptr}, {"hiden_size", 128}}, {"hidden_size is missing", "hint: is hiden_size (now 128) meant"});
  expect_refused("qwen3_moe", {{"num_experts_per_tok", nullptr}}, {"num_experts_per_tok", "is missing"});
  expect_refused("qwen3_moe", {{"num_experts_per_tok", 9}}, {"num_experts_per_tok is 9", "from 1 to 8"});
  expect_refused("qwen3_moe", {{"num_experts", 16}}, {"num_experts is 16", "num_local_experts is 8"});
  expect_refused("qwen3_moe", {{"num_hidden_layers", 10001}}, {"num_hidden_layers is 10001", "from 1 to 10000"});
  expect_refused("qwen3_moe", {{"num_hidden_layers", 10000}, {"num_local_experts", 65536}}, {"num_local_experts", "1000000 experts"});
  expect_refused("qwen3_moe", {{"vocab_size", 9223372036854775807ull + 1ull}}, {"vocab_size"});
  expect_refused("qwen3_moe", {{"vocab_size", 384.5}}, {"vocab_size is 384.5"});
  expect_refused("qwen3_moe", {{"hidden_size", "128"}}, {"hidden_size is \"128\""});
  expect_refused("qwen3_moe", {{"head_dim", 33}}, {"head_dim is 33", "even"});
  expect_refused("qwen3_moe", {{"num_key_value_heads", 3}}, {"num_key_value_heads is 3", "divisor of num_attention_heads (4)"});
  expect_refused("qwen3_moe", {{"rms_norm_eps", 0}}, {"rms_norm_eps is 0", "above 0"});
  expect_refused("qwen3_moe", {{"tie_word_embeddings", 1}}, {"tie_word_embeddings is 1", "true or false"});
  expect_refused("qwen3_moe", {{"hidden_act", "gelu"}}, {"hidden_act is \"gelu\"", "silu"});
  expect_refused("qwen3_moe", {{"dtype", "float8_e4m3fn"}}, {"dtype", "bfloat16, float16 or float32"});
  expect_refused("qwen3_moe", {{"moe_intermediate_size", {128, 64}}}, {"moe_intermediate_size", "same size for all layers"});
  expect_refused("hy_v3", {{"mlp_layer_types", {"dense"}}}, {"mlp_layer_types", "2 layers (it has 1)"});
  expect_refused("hy_v3", {{"mlp_layer_types", {"dense", "moe"}}}, {"mlp_layer_types"});
  expect_refused("hy_v3", {{"first_k_dense_replace", 2}}, {"mlp_layer_types", "first_k_dense_replace"});
  expect_refused("hy_v3", {{"moe_router_use_sigmoid", false}}, {"moe_router_use_sigmoid"});
}

TEST(Config, TheLineOfAKeyIsGiven) {
  const Scratch scratch;
  write_text(scratch.path() / "config.json", "{\n \"model_type\": \"llama\",\n \"vocab_size\": 0\n}\n");
  expect_error<DataError>([&] { read_model_config(scratch.path()); }, {"config.json:3: vocab_size is 0"});
}

TEST(Config, WrongRopeParametersAreRefused) {
  const auto refused = [](const Json& rope, const std::vector<std::string>& parts) { expect_refused("llama", {{"rope_parameters", rope}}, parts); };
  refused({{"rope_type", "longrope"}}, {"rope_parameters.rope_type is \"longrope\"", "default, linear, llama3 or yarn"});
  refused({{"rope_type", "linear"}}, {"rope_parameters.factor is missing"});
  refused({{"rope_type", "linear"}, {"factor", -1.0}}, {"rope_parameters.factor is -1.0"});
  refused({{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 4.0}}, {"high_freq_factor is 4.0", "more than low_freq_factor"});
  refused({{"rope_type", "default"}, {"rope_theta", 1}}, {"rope_theta is 1", "more than 1"});
  refused({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, {"partial_rotary_factor is 0.5"});
}

TEST(Config, AQuantizedModelIsRefusedUnlessAskedFor) {
  expect_refused("qwen3_moe", {{"quantization_config", {{"quant_method", "fp8"}}}}, {"quantization_config", "quantized already", "hint"});
  const Scratch scratch;
  Json config = read_json(reference_folder("qwen3_moe") / "config.json");
  config["quantization_config"] = {{"quant_method", "fp8"}};
  write_text(scratch.path() / "config.json", config.dump());
  EXPECT_EQ(read_model_config(scratch.path(), QuantizedConfig::kAllowed).experts, 8);
}

TEST(Config, AMissingOrMalformedFileIsNamed) {
  const Scratch scratch;
  expect_error<DataError>([&] { read_model_config(scratch.path()); }, {"config.json", "no such file"});
  write_text(scratch.path() / "config.json", "{\"model_type\": ");
  expect_error<DataError>([&] { read_model_config(scratch.path()); }, {"config.json"});
  write_text(scratch.path() / "config.json", "[1]");
  expect_error<DataError>([&] { read_model_config(scratch.path()); }, {"config.json", "not a JSON object"});
}

TEST(ModelFolder, FindsTheMainSnapshotOfACacheFolder) {
  const Scratch scratch;
  const auto cache = scratch.path() / "models--org--name";
  for (const char* revision : {"aaa", "bbb"}) {
    std::filesystem::create_directories(cache / "snapshots" / revision);
    write_text(cache / "snapshots" / revision / "config.json", "{}");
  }
  std::filesystem::create_directories(cache / "refs");
  write_text(cache / "refs" / "main", "aaa\n");
  EXPECT_EQ(resolve_model_folder(cache), cache / "snapshots" / "aaa");
  EXPECT_EQ(resolve_model_folder(cache / "snapshots"), cache / "snapshots" / "aaa");
  EXPECT_EQ(resolve_model_folder(cache / "snapshots" / "bbb"), cache / "snapshots" / "bbb");
  write_text(cache / "refs" / "main", "gone");
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(cache / "snapshots" / "aaa", now);
  std::filesystem::last_write_time(cache / "snapshots" / "bbb", now - std::chrono::hours(1));
  EXPECT_EQ(resolve_model_folder(cache), cache / "snapshots" / "aaa");   // the newest
  write_text(cache / "refs" / "main", "../../elsewhere");
  expect_error<DataError>([&] { resolve_model_folder(cache); }, {"main"});
}

TEST(ModelFolder, SaysWhatIsWrong) {
  const Scratch scratch;
  expect_error<DataError>([&] { resolve_model_folder(scratch.path() / "none"); }, {"none", "no such folder"});
  expect_error<DataError>([&] { resolve_model_folder(scratch.path()); }, {"no config.json"});
  write_text(scratch.path() / "file", "x");
  expect_error<DataError>([&] { resolve_model_folder(scratch.path() / "file"); }, {"file", "not a folder"});
}

}  // namespace
}  // namespace scalewright
