#include "app/runtime.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace scalewright {
namespace {

/// Processes of one host take its GPUs in turn; this process then works on its own only.
at::Device find_device(const std::string& name, int local_rank) {
  if (name == "cpu") return at::kCPU;
  if (!at::hasCUDA())
    throw UserError(
        "--device cuda: no CUDA device can be used (a CPU build of libtorch, or no driver)\n"
        "hint: install a CUDA build of torch (TORCH_SPEC=torch==... ./run build), or leave --device away; see "
        "`scalewright doctor`");
  const c10::impl::VirtualGuardImpl gpus(at::kCUDA);
  const at::Device own(at::kCUDA, static_cast<at::DeviceIndex>(local_rank % gpus.deviceCount()));
  gpus.setDevice(own);
  return own;
}

void set_threads(int64_t threads) {
  if (threads < 0 || threads > 4096) throw UserError(fmt::format("--threads {}: from 0 (all cores) to 4096", threads));
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
}

int degree(int64_t value, const char* name) {
  if (value < 1 || value > (1 << 20)) throw UserError(fmt::format("{} {}: must be at least 1", name, value));
  return static_cast<int>(value);
}

Degrees degrees_of(const ParallelSection& parallel, int64_t ranks) {
  Degrees degrees;
  degrees.tp = degree(parallel.tp, "tp");
  degrees.ep = degree(parallel.ep, "ep");
  degrees.cp = degree(parallel.cp, "cp");
  degrees.pp = degree(parallel.pp, "pp");
  const int64_t others = parallel.tp * parallel.cp * parallel.pp;
  degrees.dp = degree(parallel.dp > 0 ? parallel.dp : std::max<int64_t>(1, ranks / others), "dp");
  degrees.sp = parallel.sp;
  degrees.first_stage_layers = static_cast<int>(parallel.first_stage_layers);
  degrees.last_stage_layers = static_cast<int>(parallel.last_stage_layers);
  degrees.shard_dense = parallel.shard_dense && parallel.deterministic != "layout";   // canonical products spread them over tp only
  return degrees;
}

}  // namespace

at::ScalarType resolve_dtype(const std::string& name, const at::Device& device) {
  if (name == "float64") return at::kDouble;
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name != "auto") throw UserError(fmt::format("dtype '{}' (allowed: auto, float64, float32, bfloat16)", name));
  return device.is_cuda() || __builtin_cpu_supports("avx512bf16") ? at::kBFloat16 : at::kFloat;
}

std::string compute_dtype_name(at::ScalarType dtype) {
  return dtype == at::kDouble ? "float64" : dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

Config command_config(const CommonOptions& common) {
  Config config =
      common.config.empty() ? default_config(common.overrides) : load_config(common.config, common.overrides);
  if (common.seed) {
    if (*common.seed < 0) throw UserError(fmt::format("--seed {}: must be at least 0", *common.seed));
    config.train.seed = *common.seed;
  }
  if (common.dtype != "auto") config.model.dtype = common.dtype;
  auto& parallel = config.parallel;
  parallel.tp = common.tp.value_or(parallel.tp);
  parallel.ep = common.ep.value_or(parallel.ep);
  parallel.cp = common.cp.value_or(parallel.cp);
  parallel.pp = common.pp.value_or(parallel.pp);
  parallel.dp = common.dp.value_or(parallel.dp);
  parallel.sp = parallel.sp || common.sp;
  check_config(config);
  return config;
}

Runtime start_runtime(const CommonOptions& common, Log& log, const World& world) {
  set_threads(common.threads);
  const Config config = command_config(common);
  for (const auto& note : config.notes) log.info("{}: {}", common.config, note);
  Compute compute;
  compute.device = find_device(common.device, world.local_rank);
  compute.dtype = resolve_dtype(config.model.dtype, compute.device);
  compute.deterministic = config.parallel.deterministic == "layout";
  return {Mesh::connect(degrees_of(config.parallel, world.size), world), compute};
}

}  // namespace scalewright
