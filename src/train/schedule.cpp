#include "train/schedule.h"

#include <numbers>

#include "base/error.h"

namespace scalewright {

double learning_rate(const TrainSection& options, int64_t step) {
  if (step < options.warmup) return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  const double total = static_cast<double>(options.steps), span = total - static_cast<double>(options.warmup);
  const double x = span > 0 ? std::clamp((static_cast<double>(step) - options.warmup) / span, 0.0, 1.0) : 0.0;
  const double drop = options.min_lr - options.lr;
  if (options.schedule == "constant") return options.lr;
  if (options.schedule == "linear") return options.lr + drop * x;
  if (options.schedule == "cosine") return options.min_lr - drop * (1 + std::cos(std::numbers::pi * x)) / 2;
  if (options.schedule == "wsd") {
    const double decay = std::max(1.0, std::round(options.decay_fraction * total));
    return options.lr + drop * std::clamp((static_cast<double>(step) - (total - decay)) / decay, 0.0, 1.0);
  }
  throw UserError(fmt::format("unknown train.schedule '{}': expected constant, linear, cosine or wsd", options.schedule));
}

}  // namespace scalewright
