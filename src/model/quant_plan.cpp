#include "model/quant_plan.h"

#include <numeric>

#include <set>

#include "base/error.h"
#include "base/glob.h"

namespace scalewright {

namespace {

/// Names of the projections of which a module matches a pattern. Throws UserError for a pattern without any.
std::set<std::string> skipped_projections(const std::vector<std::string>& patterns, const std::vector<ProjectionSpec>& specs) {
  std::set<std::string> skipped;
  for (const std::string& pattern : patterns) {
    bool used = false;
    for (const ProjectionSpec& spec : specs) {
      const auto matches = [&](const Piece& piece) { return glob_match(pattern, piece.module); };
      if (!std::any_of(spec.pieces.begin(), spec.pieces.end(), matches)) continue;
      skipped.insert(spec.name);
      used = true;
    }
    if (used) continue;
    throw UserError(
        fmt::format("quantize.skip: \"{}\" matches no module that could be quantized\n"
                    "hint: names look like {}; router, lm_head, embeddings and norms stay high precision anyway",
                    pattern, specs.empty() ? "model.layers.0.self_attn.q_proj" : specs.front().pieces.front().module));
  }
  return skipped;
}

/// The largest group that the format lays over the columns of a weight or its input; 1: no groups.
int64_t column_group(const Format& format) {
  const int64_t weight = std::max<int64_t>(format.weight.group, 1);
  return format.activation ? std::max(weight, format.activation->group) : weight;
}

void check_divisible(const Format& format, const std::vector<const ProjectionSpec*>& chosen) {
  const int64_t group = column_group(format);
  std::vector<std::string> wrong;
  for (const ProjectionSpec* spec : chosen) {
    if (spec->columns % group != 0) wrong.push_back(fmt::format("{} has {}", spec->pieces.front().module, spec->columns));
  }
  if (wrong.empty()) return;
  const std::size_t shown = std::min<std::size_t>(wrong.size(), 5);
  const std::string more = wrong.size() > shown ? fmt::format(" and {} more", wrong.size() - shown) : "";
  throw DataError(
      fmt::format("format {} needs in-dimensions that are multiples of {}; {} module{} another: {}{}\n"
                  "hint: leave them out with quantize.skip, or choose a format without groups (w8a8, fp8)",
                  format.name, group, wrong.size(), wrong.size() == 1 ? " has" : "s have", fmt::join(wrong.begin(), wrong.begin() + shown, ", "), more));
}

std::string nothing_left(const QuantizeSection& quantize, bool none_skipped) {
  if (quantize.experts_only && none_skipped) {
    return "nothing is left to quantize: quantize.experts_only is set, and the model has no routed experts\nhint: turn experts_only off";
  }
  return fmt::format("nothing is left to quantize: quantize.skip ({}) matches every module{}\nhint: narrow the patterns", fmt::join(quantize.skip, ", "),
                     quantize.experts_only ? " that quantize.experts_only leaves" : "");
}

}  // namespace

QuantPlan make_quant_plan(const QuantizeSection& quantize, bool learn_activation_scales, const std::vector<ProjectionSpec>& specs) {
  QuantPlan plan;
  plan.numerics = find_numerics(quantize.numerics);
  plan.vllm_w4afp8_rounding = quantize.w4afp8_rounding == "vllm";
  plan.learn_activation_scales = learn_activation_scales;
  const Format& format = find_format(quantize.format);
  const std::set<std::string> skipped = skipped_projections(quantize.skip, specs);
  std::vector<const ProjectionSpec*> chosen;
  for (const ProjectionSpec& spec : specs) {
    if (skipped.contains(spec.name) || (quantize.experts_only && !spec.routed())) continue;
    chosen.push_back(&spec);
    plan.formats.emplace(spec.name, &format);
  }
  if (chosen.empty()) throw UserError(nothing_left(quantize, skipped.empty()));
  check_divisible(format, chosen);
  return plan;
}

int64_t column_unit(const QuantPlan& plan) {
  int64_t unit = 1;
  for (const auto& [name, format] : plan.formats) {
    unit = std::lcm(unit, std::max<int64_t>(1, format->weight.group));
    if (format->activation) unit = std::lcm(unit, std::max<int64_t>(1, format->activation->group));
  }
  return unit;
}

}  // namespace scalewright
