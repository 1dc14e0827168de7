// Time of one scale-only QAD step of the product's own training code: teacher, student, distillation loss, backward, AdamW, on a random
// Qwen3-MoE with new token ids in every step.
//   ./run bench qad_step --format nvfp4 --steps 5 --threads 2 --json
//   ./run bench qad_step --format nvfp4 --peers          alternately with the floor of its matrix products (bench/pairs.py)
// The shape options and defaults are those of the peers' script, so that the sides compute the same.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "comm/mesh.h"
#include "model/decoder.h"
#include "ops/tensor_memory.h"
#include "store/safetensors.h"
#include "train/calibration.h"
#include "train/optimizer.h"
#include "train/training_step.h"

namespace scalewright {
namespace {

struct Options {
  std::string format = "nvfp4", dtype = "auto";
  int64_t steps = 5, threads = 2, hidden = 512, layers = 4, experts = 16, topk = 4, inter = 256, vocab = 8192, heads = 8, kv = 4, head_dim = 64, seq = 512, mbs = 2;
};

Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, int64_t*> numbers = {{"--steps", &options.steps}, {"--threads", &options.threads}, {"--hidden", &options.hidden}, {"--layers", &options.layers},
                                                   {"--experts", &options.experts}, {"--topk", &options.topk}, {"--inter", &options.inter}, {"--vocab", &options.vocab},
                                                   {"--heads", &options.heads}, {"--kv", &options.kv}, {"--head-dim", &options.head_dim}, {"--seq", &options.seq}, {"--mbs", &options.mbs}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") continue;   // always
    if (i + 1 == argc) throw UserError(word + " needs a value");
    if (word == "--format") options.format = argv[++i];
    else if (word == "--dtype") options.dtype = argv[++i];
    else if (const auto number = numbers.find(word); number != numbers.end()) *number->second = std::atoll(argv[++i]);
    else throw UserError("unknown option " + word);
  }
  return options;
}

/// A random model on disk, as the loader wants it; removed at the end.
class RandomModel {
 public:
  explicit RandomModel(const Options& o) {
    std::string name = (std::filesystem::temp_directory_path() / "scalewright-bench-XXXXXX").string();
    SW_CHECK(::mkdtemp(name.data()), "no temporary folder");
    folder_ = name;
    const Json config = {{"architectures", {"Qwen3MoeForCausalLM"}}, {"model_type", "qwen3_moe"}, {"hidden_act", "silu"}, {"hidden_size", o.hidden}, {"num_hidden_layers", o.layers},
                         {"num_attention_heads", o.heads}, {"num_key_value_heads", o.kv}, {"head_dim", o.head_dim}, {"num_experts", o.experts}, {"num_experts_per_tok", o.topk},
                         {"moe_intermediate_size", o.inter}, {"intermediate_size", o.inter * 4}, {"norm_topk_prob", true}, {"mlp_only_layers", Json::array()}, {"decoder_sparse_step", 1},
                         {"max_position_embeddings", 4096}, {"tie_word_embeddings", false}, {"rms_norm_eps", 1e-6}, {"rope_theta", 10000.0}, {"vocab_size", o.vocab}, {"torch_dtype", "bfloat16"}};
    std::ofstream(folder_ / "config.json") << config.dump();
    at::manual_seed(0);
    const auto add = [&](const std::string& tensor, std::vector<int64_t> sizes) { tensors_[tensor] = (at::randn(sizes) * 0.05).to(at::kBFloat16); };
    const auto ones = [&](const std::string& tensor, int64_t size) { tensors_[tensor] = at::ones({size}, at::kBFloat16); };
    add("model.embed_tokens.weight", {o.vocab, o.hidden});
    add("lm_head.weight", {o.vocab, o.hidden});
    ones("model.norm.weight", o.hidden);
    for (int64_t layer = 0; layer < o.layers; ++layer) {
      const std::string p = fmt::format("model.layers.{}.", layer);
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) ones(p + norm + ".weight", o.hidden);
      for (const char* norm : {"q_norm", "k_norm"}) ones(p + "self_attn." + norm + ".weight", o.head_dim);
      add(p + "self_attn.q_proj.weight", {o.heads * o.head_dim, o.hidden});
      for (const char* part : {"k", "v"}) add(p + "self_attn." + part + "_proj.weight", {o.kv * o.head_dim, o.hidden});
      add(p + "self_attn.o_proj.weight", {o.hidden, o.heads * o.head_dim});
      add(p + "mlp.gate.weight", {o.experts, o.hidden});
      for (int64_t e = 0; e < o.experts; ++e) {
        const std::string expert = fmt::format("{}mlp.experts.{}.", p, e);
        for (const char* part : {"gate", "up"}) add(expert + part + "_proj.weight", {o.inter, o.hidden});
        add(expert + "down_proj.weight", {o.hidden, o.inter});
      }
    }
    save_tensors(folder_ / "model.safetensors", tensors_, {{"format", "pt"}});
    tensors_.clear();
  }
  ~RandomModel() { std::filesystem::remove_all(folder_); }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::map<std::string, at::Tensor> tensors_;
};

at::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  return __builtin_cpu_supports("avx512bf16") ? at::kBFloat16 : at::kFloat;
}

void run(const Options& o) {
  keep_freed_memory();   // as the program does
  at::set_num_threads(static_cast<int>(o.threads));
  const RandomModel model(o);
  const ModelConfig config = read_model_config(model.folder());
  const ModelWeights weights(model.folder(), config);
  Compute compute;
  compute.dtype = dtype_of(o.dtype);
  QuantizeSection quantize;
  quantize.format = o.format;
  const QuantPlan plan = make_quant_plan(quantize, false, projections(config));
  const Mesh mesh = Mesh::single({});
  Decoder decoder(config, weights, compute, mesh);
  decoder.quantize(plan);
  const auto rows = random_rows(o.vocab, o.seq, 1, 1 << 20);
  if (decoder.needs_calibration()) calibrate(decoder, *rows, o.mbs, o.mbs);
  TrainSection train;
  train.micro_batch = train.global_batch = o.mbs;
  train.clip = 1;
  train.lr = 2e-4;
  AdamW optimizer(train, decoder.trainables());
  SelfTeacher teacher(decoder);
  std::vector<double> seconds;
  double loss = 0;
  for (int64_t step = 0; step <= o.steps; ++step) {   // the first warms up
    const auto start = std::chrono::steady_clock::now();
    optimizer.clear_gradients();
    const StepResult result = accumulate_gradients(decoder, teacher, *rows, train, step * o.mbs, o.mbs);
    optimizer.step(train.lr, optimizer.gradient_norm());
    decoder.refresh();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    loss = result.mean_loss();
  }
  seconds.erase(seconds.begin());
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const OrderedJson line = {{"peer", "scalewright"}, {"fmt", o.format}, {"dtype", compute.dtype == at::kFloat ? "float32" : "bfloat16"},
                            {"tok_s", static_cast<double>(o.mbs * o.seq) / median}, {"s_step", median}, {"min", seconds[0]}, {"peak_rss_mb", usage.ru_maxrss / 1024}, {"loss", loss}};
  std::cout << line.dump() << std::endl;
}

}  // namespace
}  // namespace scalewright

int main(int argc, char** argv) {
  try {
    scalewright::run(scalewright::parse(argc, argv));
    return 0;
  } catch (const scalewright::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
