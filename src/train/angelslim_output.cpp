#include "train/angelslim_output.h"

#include "base/json.h"
#include "store/files.h"
#include "store/safetensors.h"

namespace scalewright {

namespace {

OrderedJson in_mcore_qad_words(const Config& config) {
  const TrainSection& t = config.train;
  const ParallelSection& p = config.parallel;
  OrderedJson json;
  json["compression"] = {{"name", "MCoreQAD"},
                         {"MCoreQAD",
                          {{"format", config.quantize.format},
                           {"experts_only", config.quantize.experts_only},
                           {"init_scales_path", config.quantize.init_scales},
                           {"lm_weight", t.loss.lm_weight},
                           {"distill_weight", t.loss.distill_weight},
                           {"distill_type", t.loss.type},
                           {"distill_temperature", t.loss.temperature},
                           {"distill_topk", t.loss.top_k},
                           {"seq_len", config.data.seq_len},
                           {"micro_batch_size", t.micro_batch},
                           {"train_iters", t.steps},
                           {"recompute", t.recompute},
                           {"save_every", t.save_every},
                           {"parallel",
                            {{"tensor_parallel", p.tp}, {"pipeline_parallel", p.pp}, {"expert_parallel", p.ep}, {"context_parallel", p.cp},
                             {"sequence_parallel", p.sp}}},
                           {"optim", {{"lr", t.lr}, {"weight_decay", t.weight_decay}, {"betas", {t.beta1, t.beta2}}, {"grad_clip", t.clip}}}}}};
  json["model"] = {{"model_path", config.model.path}};
  json["dataset"] = {{"data_path", config.data.train}};
  json["global"] = {{"save_path", config.output.path}};
  json["numerics"] = config.quantize.numerics;
  return json;
}

}  // namespace

void write_angelslim_scales(const std::filesystem::path& run, const Config& config, const std::map<std::string, at::Tensor>& scales, int64_t step,
                            bool last) {
  const std::map<std::string, std::string> about = {{"format", config.quantize.format}, {"numerics", config.quantize.numerics}};
  save_tensors(run / fmt::format("scales_rank0_step{}.safetensors", step), scales, about);
  if (last) save_tensors(run / "scales_rank0.safetensors", scales, about);
  write_file_atomic(run / "angelslim_config.json", in_mcore_qad_words(config).dump(2) + "\n");
}

}  // namespace scalewright
