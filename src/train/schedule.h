// The learning rate as a pure function of the step.
#pragma once
#include "config/config.h"

namespace scalewright {

/// Learning rate of update number `step` (0-based, of options.steps). Warm-up: lr*(step+1)/warmup. Then, with progress
/// x = (step-warmup)/(steps-warmup): constant: lr; linear: lr + (min_lr-lr)*x; cosine: min_lr + (lr-min_lr)*(1+cos(pi x))/2;
/// wsd: lr until the last decay_fraction of all steps, then linear to min_lr over these. min_lr is reached at step = steps.
double learning_rate(const TrainSection& options, int64_t step);

}  // namespace scalewright
