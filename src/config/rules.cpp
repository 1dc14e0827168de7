// The rules between keys.
#include "config/reading.h"

namespace scalewright {
namespace {

void loss_rules(const TrainSection& train, std::vector<Violation>& out) {
  if (train.loss.lm_weight == 0 && train.loss.distill_weight == 0)
    out.push_back({{"train.loss.distill_weight", "train.loss.lm_weight"},
                   "train.loss.lm_weight and train.loss.distill_weight are both 0: nothing would be trained; at least "
                   "one must be above 0"});
}

void batch_rules(const TrainSection& train, const ParallelSection& parallel, std::vector<Violation>& out) {
  const int64_t rows = train.micro_batch * std::max<int64_t>(parallel.dp, 1);
  if (train.global_batch > 0 && train.global_batch % rows != 0)
    out.push_back(
        {{"train.global_batch", "train.micro_batch"},
         fmt::format("train.global_batch {} is not a multiple of train.micro_batch {}{}", train.global_batch,
                     train.micro_batch, parallel.dp > 1 ? fmt::format(" times parallel.dp {}", parallel.dp) : "")});
}

void schedule_rules(const TrainSection& train, std::vector<Violation>& out) {
  if (train.min_lr > train.lr)
    out.push_back(
        {{"train.min_lr", "train.lr"}, fmt::format("train.min_lr {} is above train.lr {}", train.min_lr, train.lr)});
  if (train.warmup > train.steps)
    out.push_back({{"train.warmup", "train.steps"},
                   fmt::format("train.warmup {} is longer than train.steps {}", train.warmup, train.steps)});
}

void format_rules(const QuantizeSection& quantize, const TrainSection& train, std::vector<Violation>& out) {
  if (train.act_scales && quantize.format != "nvfp4")
    out.push_back({{"train.act_scales", "quantize.format"},
                   fmt::format("train.act_scales needs quantize.format nvfp4: {} has no global activation scales",
                               quantize.format)});
  if (quantize.w4afp8_rounding != "none" && quantize.format != "w4afp8")
    out.push_back(
        {{"quantize.w4afp8_rounding", "quantize.format"},
         fmt::format("quantize.w4afp8_rounding is about format w4afp8, but quantize.format is {}", quantize.format)});
}

}  // namespace

std::vector<Violation> rule_violations(const Config& config) {
  std::vector<Violation> out;
  loss_rules(config.train, out);
  batch_rules(config.train, config.parallel, out);
  schedule_rules(config.train, out);
  format_rules(config.quantize, config.train, out);
  return out;
}

}  // namespace scalewright
