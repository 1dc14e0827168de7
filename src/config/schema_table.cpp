// The rows of the schema.
#include "config/schema.h"

namespace scalewright {
namespace {

/// at(&Config::train, &TrainSection::steps): the accessor along a chain of members.
template <typename Outer, typename Inner, typename... Rest>
auto follow(Outer& outer, Inner Outer::*member, Rest... rest) -> decltype(auto) {
  if constexpr (sizeof...(Rest) == 0) {
    return (outer.*member);
  } else {
    return follow(outer.*member, rest...);
  }
}

template <typename... Members>
auto at(Members... members) {
  using Value = std::remove_reference_t<decltype(follow(std::declval<Config&>(), members...))>;
  return Accessor<Value>([members...](Config& config) -> Value& { return follow(config, members...); });
}

Range at_least(double low) { return {low}; }
Range above(double low) { return {low, std::numeric_limits<double>::infinity(), true, false}; }
Range between(double low, double high) { return {low, high}; }
Range positive_up_to(double high) { return {0, high, true, false}; }

// Beyond these no run makes sense, and float32 or the memory overflows.
constexpr double kLargestFactor = 1e6, kLargestBatch = 1 << 20;
Choices one_of(std::vector<std::string> words) { return {std::move(words)}; }

using C = Config;

std::vector<Key> model_keys() {
  using S = ModelSection;
  return {
      {"model.path", at(&C::model, &S::path), Anything{},
       "Hugging Face folder of the BF16 model, or a cache folder with `snapshots/`."},
      {"model.checkpoint", at(&C::model, &S::checkpoint), Anything{},
       "A copy of the model made by `convert` that train reads instead; converted when missing or empty. Empty: none."},
      {"model.dtype", at(&C::model, &S::dtype), one_of({"auto", "float64", "float32", "bfloat16"}),
       "Type of activations and matrix products; auto is bfloat16 where the CPU has its instructions (or on a GPU), "
       "else float32."},
  };
}

std::vector<Key> data_keys() {
  using S = DataSection;
  return {
      {"data.train", at(&C::data, &S::train), Anything{},
       "JSON lines, text files, or a folder of prepared token shards. Empty: random tokens, with a warning."},
      {"data.validation", at(&C::data, &S::validation), Anything{},
       "The same kinds. Empty: a holdout of `validation_fraction` of train."},
      {"data.format", at(&C::data, &S::format), one_of({"auto", "sharegpt", "hy_v3", "text"}),
       "sharegpt: `messages` or `conversations`; hy_v3: `applied_message`; auto looks at the first line."},
      {"data.seq_len", at(&C::data, &S::seq_len), at_least(2),
       "Tokens of a row; longer samples are truncated, and counted."},
      {"data.loss_on", at(&C::data, &S::loss_on), one_of({"assistant", "all"}),
       "Tokens that the loss counts: assistant turns with their stop token, or all."},
      {"data.packing", at(&C::data, &S::packing), Anything{},
       "Several documents a row; attention and positions restart at each."},
      {"data.validation_fraction", at(&C::data, &S::validation_fraction), Range{0, 1, false, true},
       "Share of train held out when `validation` is empty."},
      {"data.validation_rows", at(&C::data, &S::validation_rows), at_least(0),
       "At most so many validation rows, the same every time."},
      {"data.max_samples", at(&C::data, &S::max_samples), at_least(0), "Samples read from train; 0: all."},
      {"data.workers", at(&C::data, &S::workers), between(0, 1024), "Processes that tokenize; 0: one a core."},
  };
}

std::vector<Key> quantize_keys() {
  using S = QuantizeSection;
  return {
      {"quantize.format", at(&C::quantize, &S::format), one_of({"nvfp4", "nvfp4a16", "w4a16", "w8a8", "fp8", "w4afp8"}),
       "Format of weights and activations, see docs/formats.md."},
      {"quantize.numerics", at(&C::quantize, &S::numerics), one_of({"deploy", "mcore_qad"}),
       "deploy: exactly what a serving engine multiplies by; mcore_qad: AngelSlim's eager rules."},
      {"quantize.experts_only", at(&C::quantize, &S::experts_only), Anything{}, "Quantize only routed experts."},
      {"quantize.skip", at(&C::quantize, &S::skip), Anything{},
       "Globs over module names (`model.layers.0.self_attn.q_proj`) that stay BF16; a fused group is skipped whole."},
      {"quantize.algorithm", at(&C::quantize, &S::algorithm), one_of({"max"}), "Calibration algorithm."},
      {"quantize.calibration", at(&C::quantize, &S::calibration), Anything{},
       "JSON lines, token shards or safetensors with input_ids. Empty: the training data."},
      {"quantize.calibration_rows", at(&C::quantize, &S::calibration_rows), at_least(1), "Rows used for calibration."},
      {"quantize.w4afp8_rounding", at(&C::quantize, &S::w4afp8_rounding), one_of({"none", "vllm"}),
       "vllm: model that engine's E4M3 re-rounding of w4afp8 group scales in training and evaluation."},
      {"quantize.init_scales", at(&C::quantize, &S::init_scales), Anything{},
       "A run, checkpoint or scales file of ours to start from."},
  };
}

std::vector<Key> loss_keys() {
  using L = LossSection;
  const auto loss = [](auto member) { return at(&C::train, &TrainSection::loss, member); };
  return {
      {"train.loss.lm_weight", loss(&L::lm_weight), between(0, kLargestFactor), "Weight of the cross-entropy with the labels."},
      {"train.loss.distill_weight", loss(&L::distill_weight), between(0, kLargestFactor),
       "Weight of the divergence to the BF16 teacher."},
      {"train.loss.type", loss(&L::type), Choices{{"fkl", "rkl", "cakld", "jsd"}, {{"kl", "fkl"}}},
       "Divergence: forward KL, reverse KL, confidence-aware mixture of both, Jensen-Shannon. `kl` is `fkl`."},
      {"train.loss.temperature", loss(&L::temperature), positive_up_to(kLargestFactor),
       "Both logits are divided by it; the divergence is multiplied by its square."},
      {"train.loss.top_k", loss(&L::top_k), at_least(0),
       "Only the teacher's k most likely tokens; 0: the whole vocabulary."},
      {"train.loss.tail", loss(&L::tail), Anything{},
       "With top_k: one more outcome holds the rest of the mass; false: renormalised on the k."},
      {"train.loss.jsd_beta", loss(&L::jsd_beta), Range{0, 1, true, true}, "jsd: the teacher's share of the mixture."},
      {"train.loss.chunk", loss(&L::chunk), at_least(1), "Tokens whose logits exist at a time."},
  };
}

std::vector<Key> train_keys() {
  using S = TrainSection;
  return {
      {"train.what", at(&C::train, &S::what), one_of({"scales"}), "What is trained."},
      {"train.act_scales", at(&C::train, &S::act_scales), Anything{},
       "Also learn the activations' global scales (nvfp4)."},
      {"train.steps", at(&C::train, &S::steps), at_least(1), "Optimizer steps."},
      {"train.micro_batch", at(&C::train, &S::micro_batch), between(1, kLargestBatch),
       "Rows of a forward pass on each data-parallel rank."},
      {"train.global_batch", at(&C::train, &S::global_batch), between(0, kLargestBatch),
       "Rows of an optimizer step; 0: micro_batch times the data-parallel size."},
      {"train.lr", at(&C::train, &S::lr), positive_up_to(kLargestFactor), "Peak learning rate (AdamW)."},
      {"train.min_lr", at(&C::train, &S::min_lr), between(0, kLargestFactor), "Learning rate that linear, cosine and wsd end at."},
      {"train.schedule", at(&C::train, &S::schedule), one_of({"constant", "linear", "cosine", "wsd"}),
       "Course of the learning rate after the warm-up; wsd: constant, then decay over the last `decay_fraction`."},
      {"train.warmup", at(&C::train, &S::warmup), at_least(0), "Steps of linear warm-up."},
      {"train.decay_fraction", at(&C::train, &S::decay_fraction), Range{0, 1, true, false},
       "wsd: share of the steps, at the end, that decays."},
      {"train.betas", PairAccessor{at(&C::train, &S::beta1), at(&C::train, &S::beta2)}, Range{0, 1, false, true},
       "AdamW's two betas."},
      {"train.eps", at(&C::train, &S::eps), above(0), "AdamW's epsilon."},
      {"train.weight_decay", at(&C::train, &S::weight_decay), between(0, kLargestFactor), "AdamW's decoupled weight decay."},
      {"train.clip", at(&C::train, &S::clip), at_least(0), "Largest global gradient norm; 0: no clipping."},
      {"train.max_skipped", at(&C::train, &S::max_skipped), at_least(0),
       "Consecutive non-finite steps before giving up (exit 5)."},
      {"train.recompute", at(&C::train, &S::recompute), Anything{},
       "Compute a layer's activations again in backward: less memory, about a third more work."},
      {"train.recompute_layers", at(&C::train, &S::recompute_layers), between(0, 1 << 20), "With recompute: only the first so many layers of a pipeline stage; 0: all."},
      {"train.save_every", at(&C::train, &S::save_every), at_least(0),
       "Steps between checkpoints; 0: only at the end."},
      {"train.keep_last", at(&C::train, &S::keep_last), at_least(1), "Newest checkpoints that are kept."},
      {"train.keep_every", at(&C::train, &S::keep_every), at_least(0),
       "Checkpoints at multiples of it are kept for good; 0: none."},
      {"train.validate_every", at(&C::train, &S::validate_every), at_least(0),
       "Steps between validations; 0: only at the end."},
      {"train.log_every", at(&C::train, &S::log_every), at_least(1), "Steps between log lines."},
      {"train.seed", at(&C::train, &S::seed), at_least(0), "Seed of the data order and of every random choice."},
      {"train.resume", at(&C::train, &S::resume), Pattern{"auto|never|0|[1-9][0-9]*", "auto, never, or a step number"},
       "auto: from the newest good checkpoint, if there is one."},
  };
}

std::vector<Key> parallel_keys() {
  using S = ParallelSection;
  return {
      {"parallel.tp", at(&C::parallel, &S::tp), between(1, 1 << 20), "Tensor-parallel ranks."},
      {"parallel.ep", at(&C::parallel, &S::ep), between(1, 1 << 20), "Expert-parallel ranks."},
      {"parallel.cp", at(&C::parallel, &S::cp), between(1, 1 << 20), "Context-parallel ranks."},
      {"parallel.pp", at(&C::parallel, &S::pp), between(1, 1 << 20), "Pipeline-parallel ranks."},
      {"parallel.dp", at(&C::parallel, &S::dp), between(0, 1 << 20),
       "Data-parallel ranks; 0: what is left of the world."},
      {"parallel.first_stage_layers", at(&C::parallel, &S::first_stage_layers), between(0, 1 << 20), "Layers of the first pipeline stage; 0: even."},
      {"parallel.last_stage_layers", at(&C::parallel, &S::last_stage_layers), between(0, 1 << 20), "Layers of the last pipeline stage; 0: even."},
      {"parallel.sp", at(&C::parallel, &S::sp), Anything{}, "Sequence parallelism between tensor-parallel ranks."},
      {"parallel.shard_dense", at(&C::parallel, &S::shard_dense), Anything{},
       "Spread dense weights, their scales and their optimizer state over the data-parallel ranks too; they are gathered for each product."},
      {"parallel.deterministic", at(&C::parallel, &S::deterministic), one_of({"run", "layout"}),
       "run: reruns are bitwise equal; layout: other layouts are too (slower; docs/layouts.md)."},
  };
}

std::vector<Key> evaluate_keys() {
  using S = EvaluateSection;
  return {
      {"evaluate.tasks", at(&C::evaluate, &S::tasks), Anything{}, "Folder of task files (JSON lines)."},
      {"evaluate.limit", at(&C::evaluate, &S::limit), at_least(0), "Questions of a task; 0: all."},
      {"evaluate.batch", at(&C::evaluate, &S::batch), at_least(1), "Sequences generated together."},
      {"evaluate.max_new_tokens", at(&C::evaluate, &S::max_new_tokens), at_least(1), "Longest answer."},
      {"evaluate.every", at(&C::evaluate, &S::every), at_least(0),
       "recover: steps between evaluated checkpoints; 0: four, evenly spread."},
      {"evaluate.divergence", at(&C::evaluate, &S::divergence), Anything{},
       "Also the divergence to the BF16 model over the answers' tokens."},
  };
}

std::vector<Key> remaining_keys() {
  return {
      {"policy.min_gap", at(&C::policy, &PolicySection::min_gap), between(0, 1),
       "recover stops before training when PTQ loses a smaller share of the BF16 score than this."},
      {"export.to", at(&C::export_, &ExportSection::to), one_of({"compressed-tensors"}), "File format of the export."},
      {"export.shard_size", at(&C::export_, &ExportSection::shard_size),
       Pattern{"[0-9]+(\\.[0-9]+)? ?([KMGT]i?)?B", "a size such as 5GB or 800MB"}, "Largest weight file."},
      {"output.path", at(&C::output, &OutputSection::path), Anything{}, "The run directory."},
      {"output.style", at(&C::output, &OutputSection::style), one_of({"scalewright", "angelslim"}),
       "angelslim: also scales_rank*.safetensors and angelslim_config.json."},
  };
}

}  // namespace

Schema::Schema()
    : sections_{
          {"model", "The model that is quantized."},
          {"data", "What it is trained on."},
          {"quantize", "How it is quantized."},
          {"train", "How its scales are trained."},
          {"train.loss", "loss = lm_weight * cross-entropy + distill_weight * divergence(teacher, student)"},
          {"parallel", "How ranks share the work."},
          {"evaluate", "How it is judged."},
          {"policy", "What `recover` decides by."},
          {"search", "Search of mixed formats; no keys yet."},
          {"export", "The checkpoint that is written."},
          {"slurm", "Job chains on a cluster; no keys yet."},
          {"output", "Where results go. `output: DIR` and `output: angelslim` are short forms."},
      } {
  for (auto&& part : {model_keys(), data_keys(), quantize_keys(), train_keys(), loss_keys(), parallel_keys(),
                      evaluate_keys(), remaining_keys()})
    keys_.insert(keys_.end(), part.begin(), part.end());
}

}  // namespace scalewright
