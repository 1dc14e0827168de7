// Which projection gets which format.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/projection_spec.h"
#include "quant/format.h"

namespace scalewright {

struct QuantPlan {
  Numerics numerics = Numerics::kDeploy;
  std::map<std::string, const Format*> formats;   // by ProjectionSpec::name; absent: stays high precision
  bool vllm_w4afp8_rounding = false;
  bool learn_activation_scales = false;
};

/// From the configuration: one format for all, experts_only, skip globs over module names (a fused group is skipped whole when any
/// of its modules matches). Throws UserError when a skip pattern matches nothing, or nothing is left to quantize; DataError when a
/// dimension is not divisible by the format's group (naming module and sizes).
QuantPlan make_quant_plan(const QuantizeSection& quantize, bool learn_activation_scales, const std::vector<ProjectionSpec>& specs);

/// A multiple of every group of input features in the plan: tensor parallelism cuts nowhere else.
int64_t column_unit(const QuantPlan& plan);

}  // namespace scalewright
