// Times of the numeric building blocks and of the quantizers' loops, one call at a time.
//   ./run bench kernels [--threads=N] [google-benchmark options, e.g. --benchmark_filter=attention]
// Counters: GB/s counts each input read once and each output written once; of_copy is that over the speed at which
// at::Tensor::copy_ moves as many bytes here and now; GFLOP/s counts 2 a multiply-add of the mathematics (attention:
// the causal half). Shapes: "layer" = a layer of ../shared/bench/peer_qad.py's model, "demo" = one of examples/tiny.
#include <benchmark/benchmark.h>

#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/gemm.h"
#include "ops/norm.h"
#include "ops/permute.h"
#include "ops/rope.h"
#include "quant/activation_quantizer.h"
#include "quant/weight_quantizer.h"

namespace scalewright {
namespace {

struct Shape {
  std::string name;
  int64_t tokens, document, hidden, heads, kv_heads, head_width, experts, choices, inner;
};
const Shape kShapes[] = {{"layer", 1024, 512, 512, 8, 4, 64, 16, 4, 256},
                         {"demo", 1500, 30, 256, 4, 2, 64, 16, 2, 128}};

at::Tensor normal(at::IntArrayRef sizes, at::ScalarType dtype) { return at::randn(sizes).to(dtype); }

/// Bytes a second of ATen's copy of `bytes` (read + written), best of 50.
double copy_speed(double bytes) {
  const auto half = std::max<int64_t>(static_cast<int64_t>(bytes / 2), 4096);
  const at::Tensor from = at::ones({half}, at::kByte);
  at::Tensor to = at::empty_like(from);
  double best = 0;
  for (int i = 0; i < 51; ++i) {
    const auto start = std::chrono::steady_clock::now();
    to.copy_(from);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (i > 0) best = std::max(best, 2.0 * static_cast<double>(half) / seconds.count());
  }
  return best;
}

void measure(const std::string& name, double flops, double bytes, std::function<void()> call) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 call();
                                 for (auto _ : state) call();
                                 const double speed = bytes > 0 ? copy_speed(bytes) : 1;
                                 const auto rate = benchmark::Counter::kIsIterationInvariantRate;
                                 if (flops > 0) state.counters["GFLOP/s"] = benchmark::Counter(flops / 1e9, rate);
                                 if (bytes > 0) {
                                   state.counters["GB/s"] = benchmark::Counter(bytes / 1e9, rate);
                                   state.counters["of_copy"] = benchmark::Counter(bytes / speed, rate);
                                 }
                               })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

/// `f` of leaves that require gradients: once forward alone, once forward and backward.
void measure_with_gradient(const std::string& name, double flops, double bytes, double backward_flops,
                           double backward_bytes, const std::vector<at::Tensor>& inputs,
                           std::function<at::Tensor(const std::vector<at::Tensor>&)> f) {
  measure(name + "/forward", flops, bytes, [=] {
    const at::NoGradGuard no_gradient;
    benchmark::DoNotOptimize(f(inputs));
  });
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_());
  const at::Tensor dy = normal(f(inputs).sizes(), inputs[0].scalar_type());
  measure(name + "/both", flops + backward_flops, bytes + backward_bytes, [=] {
    for (const at::Tensor& x : leaves) x.mutable_grad().reset();
    f(leaves).backward(dy);
  });
}

double size_of(const at::Tensor& x) { return static_cast<double>(x.nbytes()); }

void register_products(const Shape& s, const Compute& compute, const std::string& suffix) {
  struct Product {
    const char* name;
    int64_t rows, in, out;
  };
  const int64_t expert_rows = s.tokens * s.choices / s.experts;
  for (const Product& p : {Product{"qkv", s.tokens, s.hidden, (s.heads + 2 * s.kv_heads) * s.head_width},
                           {"o", s.tokens, s.heads * s.head_width, s.hidden},
                           {"expert_gate_up", expert_rows, s.hidden, 2 * s.inner},
                           {"expert_down", expert_rows, s.inner, s.hidden}}) {
    const at::Tensor x = normal({p.rows, p.in}, compute.dtype), w = normal({p.out, p.in}, compute.dtype),
                     dy = normal({p.rows, p.out}, compute.dtype);
    const double flops = 2.0 * static_cast<double>(p.rows * p.in * p.out);
    const std::string name = std::string("matmul_") + p.name + (compute.deterministic ? "/deterministic" : "") + suffix;
    measure(name + "/y", flops, 0, [=] { benchmark::DoNotOptimize(matmul_nt(compute, x, w)); });
    measure(name + "/dx", flops, 0, [=] { benchmark::DoNotOptimize(matmul_nn(compute, dy, w)); });
    measure(name + "/dw", flops, 0, [=] { benchmark::DoNotOptimize(matmul_tn(compute, dy, x)); });
  }
}

void register_element_wise(const Shape& s, const Compute& compute, const std::string& suffix) {
  const at::Tensor x = normal({s.tokens, s.hidden}, compute.dtype), w = normal({s.hidden}, compute.dtype);
  measure_with_gradient("rms_norm" + suffix, 0, 2 * size_of(x), 0, 3 * size_of(x), {x},
                        [=](const auto& in) { return rms_norm(in[0], w, 1e-6); });
  const at::Tensor heads = normal({s.tokens, s.heads, s.head_width}, compute.dtype);
  const RopeTable table =
      make_rope_table(compute, at::arange(s.tokens, at::kLong), at::rand({s.head_width / 2}, at::kDouble), 1.0);
  measure_with_gradient("rope" + suffix, 0, 2 * size_of(heads), 0, 2 * size_of(heads), {heads},
                        [=](const auto& in) { return apply_rope(in[0], table); });
  const at::Tensor gate_up = normal({s.tokens * s.choices, 2 * s.inner}, compute.dtype);
  measure_with_gradient("swiglu" + suffix, 0, 1.5 * size_of(gate_up), 0, 2.5 * size_of(gate_up), {gate_up},
                        [](const auto& in) { return swiglu(in[0]); });
}

void register_attention(const Shape& s, const Compute& compute, const std::string& suffix) {
  std::vector<int64_t> offsets;
  for (int64_t t = 0; t < s.tokens; t += s.document) offsets.push_back(t);
  offsets.push_back(s.tokens);
  const at::Tensor q = normal({s.tokens, s.heads, s.head_width}, compute.dtype),
                   k = normal({s.tokens, s.kv_heads, s.head_width}, compute.dtype);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_width));
  const double flops = 2.0 * static_cast<double>(s.tokens * (s.document + 1) * s.heads *
                                                 s.head_width);  // two products of the causal half
  measure_with_gradient("attention" + suffix, flops, 0, 2.5 * flops, 0, {q, k, normal(k.sizes(), compute.dtype)},
                        [=](const auto& in) { return attention(compute, in[0], in[1], in[2], AttentionRows::whole(offsets), scale); });
  const int64_t sequences = 8, length = 256;
  const at::Tensor cache = normal({sequences, length, s.kv_heads, s.head_width}, compute.dtype);
  const at::Tensor query = normal({sequences, s.heads, s.head_width}, compute.dtype);
  const std::vector<int64_t> lengths(sequences, length);
  measure("attention_step" + suffix, 0, 2 * size_of(cache),
          [=] { benchmark::DoNotOptimize(attention_step(compute, query, cache, cache, lengths, scale)); });
}

void register_permutation(const Shape& s, const Compute& compute, const std::string& suffix) {
  const at::Tensor experts = at::randint(s.experts, {s.tokens, s.choices}, at::kLong);
  const ExpertOrder order = sort_by_expert(experts, s.experts);
  measure("sort_by_expert" + suffix, 0, 3 * size_of(experts),
          [=] { benchmark::DoNotOptimize(sort_by_expert(experts, s.experts)); });
  const at::Tensor x = normal({s.tokens, s.hidden}, compute.dtype), y = gather_tokens(x, order);
  measure_with_gradient("gather_tokens" + suffix, 0, size_of(x) + size_of(y), 0, size_of(x) + size_of(y), {x},
                        [=](const auto& in) { return gather_tokens(in[0], order); });
  measure_with_gradient("combine_tokens" + suffix, 0, size_of(x) + size_of(y), 0, size_of(x) + 3 * size_of(y),
                        {y, at::rand({s.tokens, s.choices})},
                        [=](const auto& in) { return combine_tokens(in[0], in[1], order); });
}

void register_quantizers(const Shape& s) {
  const Compute compute{at::kBFloat16};
  const at::Tensor w = normal({s.experts, 2 * s.inner, s.hidden}, at::kBFloat16) * 0.05,
                   x = normal({s.tokens * s.choices, s.hidden}, at::kBFloat16);
  const at::Tensor dw = normal({2 * s.inner, s.hidden}, at::kBFloat16);
  for (const Format& format : all_formats()) {
    const std::string suffix = "/" + std::string(format.name) + "/" + s.name;
    const auto weights =
        std::make_shared<WeightQuantizer>("bench", format.weight, Numerics::kDeploy, w, compute, at::kBFloat16);
    measure("weight_fake_quantize" + suffix, 0, 2 * size_of(w),
            [=] { benchmark::DoNotOptimize(weights->fake_quantize(w, at::kBFloat16)); });
    const at::Tensor d_alpha = at::zeros(weights->alpha().sizes(), at::kDouble);
    measure("weight_alpha_gradient" + suffix, 0, 2 * size_of(dw),
            [=]() mutable { weights->add_alpha_gradient(w, 0, 0, dw, const_cast<at::Tensor&>(d_alpha)); });
    if (!format.activation) continue;
    const auto inputs =
        std::make_shared<ActivationQuantizer>("bench", *format.activation, Numerics::kDeploy, 0, compute);
    inputs->observe(x);
    measure_with_gradient("activation_fake_quantize" + suffix, 0, 2 * size_of(x), 0, 3 * size_of(x), {x},
                          [=](const auto& in) { return inputs->forward(in[0], {}); });
  }
}

void register_all() {
  for (const Shape& s : kShapes) {
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      const std::string suffix = "/" + s.name + (dtype == at::kFloat ? "/f32" : "/bf16");
      register_products(s, {dtype}, suffix);
      register_products(s, {dtype, at::kCPU, true}, suffix);
      register_element_wise(s, {dtype}, suffix);
      register_attention(s, {dtype}, suffix);
      register_permutation(s, {dtype}, suffix);
    }
    register_quantizers(s);
  }
}

/// Takes --threads=N out of the arguments.
void take_threads(int& argc, char** argv) {
  const std::string_view flag = "--threads=";
  for (int i = 1; i < argc; ++i) {
    if (!std::string_view(argv[i]).starts_with(flag)) continue;
    at::set_num_threads(std::stoi(argv[i] + flag.size()));
    std::copy(argv + i + 1, argv + argc, argv + i);
    --argc;
    return;
  }
}

}  // namespace
}  // namespace scalewright

int main(int argc, char** argv) {
  scalewright::take_threads(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  scalewright::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
