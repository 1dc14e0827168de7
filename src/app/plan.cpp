// plan: what every rank would hold and do, before anything is launched; config.json is all it reads of the model.
#include <charconv>
#include <set>

#include "app/command.h"
#include "app/plan_estimate.h"
#include "app/runtime.h"
#include "base/error.h"
#include "export/export.h"
#include "store/files.h"

namespace scalewright {
namespace {

constexpr int kLargestAutoWorld = 4096;
constexpr std::size_t kShownPlannedLayouts = 10;
constexpr const char* kGroups[] = {"tp", "cp", "dp", "pp", "ep", "edp"};

class PlanCommand : public Command {
 public:
  std::string name() const override { return "plan"; }
  std::string summary() const override { return "groups, shards, bytes and FLOPs of every rank, and which layouts are fastest, before any launch"; }
  std::vector<Option> options() override {
    return {{"--world", "ranks, or auto: the fewest that fit into --memory", &world_},
            {"--memory", "of one rank, such as 80GB", &memory_},
            {"--tflops", "a rank's matrix products, 10^12 a second (for estimated times)", &tflops_},
            {"--bandwidth", "GB a second that a rank can send (for estimated times)", &bandwidth_},
            {"--out", "write the plan to this file", &out_}};
  }
  bool parallel_options_are_a_plan() const override { return true; }
  ExitCode run(Context& context) override;

 private:
  std::string world_ = "auto", memory_ = "80GB", out_;
  double tflops_ = 100, bandwidth_ = 50;
};

/// The question: everything but the layout.
struct Planned {
  Config config;
  ModelConfig model;
  std::vector<ProjectionSpec> specs;
  QuantPlan plan;
  at::ScalarType compute;
  PlannedMachine machine;
  double memory;

  RankEstimate rank(const Degrees& degrees, int world, int rank) const {
    return estimate_rank(model, specs, config, plan, compute, Mesh::planned(degrees, world, rank), machine);
  }
};

struct PlannedLayout {
  Degrees degrees;
  double seconds = 0, bytes = 0;   // of the slowest and of the largest rank
};

/// The ranks that differ: of the first and the last pipeline stage, and in them the first and the last of tp and ep.
std::vector<int> telling_ranks(const Degrees& d, int world) {
  const int stage = world / d.pp;
  std::set<int> ranks = {0, stage - 1, world - stage, world - 1};
  return {ranks.begin(), ranks.end()};
}

/// Degrees of the configuration count as given when they are not the default.
CommonOptions with_configured(CommonOptions given, const ParallelSection& parallel) {
  const auto take = [](std::optional<int64_t>& option, int64_t value, int64_t unset) {
    if (!option && value != unset) option = value;
  };
  take(given.tp, parallel.tp, 1);
  take(given.ep, parallel.ep, 1);
  take(given.cp, parallel.cp, 1);
  take(given.pp, parallel.pp, 1);
  take(given.dp, parallel.dp, 0);
  return given;
}

/// All layouts of `world` ranks that the model allows, fastest first; those that do not fit last. Degrees given by option or configuration hold.
std::vector<PlannedLayout> candidates(const Planned& planned, const CommonOptions& options, int world) {
  std::vector<PlannedLayout> all;
  const CommonOptions given = with_configured(options, planned.config.parallel);
  const auto allowed = [](const std::optional<int64_t>& wanted, int degree) { return !wanted || *wanted == degree; };
  for (int tp = 1; tp <= world; ++tp) {
    if (world % tp != 0 || !allowed(given.tp, tp)) continue;
    for (int cp = 1; cp <= world / tp; ++cp) {
      if (world / tp % cp != 0 || !allowed(given.cp, cp)) continue;
      for (int pp = 1; pp <= std::min<int64_t>(world / tp / cp, planned.model.layers); ++pp) {
        if (world / tp / cp % pp != 0 || !allowed(given.pp, pp)) continue;
        for (int ep = 1; ep <= (planned.model.experts > 0 ? world / pp : 1); ++ep) {
          if (world / pp % ep != 0 || !allowed(given.ep, ep)) continue;
          PlannedLayout candidate{{tp, ep, cp, pp, world / tp / cp / pp, false}};
          candidate.degrees.shard_dense = planned.config.parallel.shard_dense;
          if (pp > 1) candidate.degrees.first_stage_layers = static_cast<int>(planned.config.parallel.first_stage_layers);
          if (pp > 1) candidate.degrees.last_stage_layers = static_cast<int>(planned.config.parallel.last_stage_layers);
          if (!allowed(given.dp, candidate.degrees.dp)) continue;
          try {
            for (int rank : telling_ranks(candidate.degrees, world)) {
              const RankEstimate estimate = planned.rank(candidate.degrees, world, rank);
              candidate.seconds = std::max(candidate.seconds, estimate.seconds);
              candidate.bytes = std::max(candidate.bytes, estimate.bytes.total());
            }
          } catch (const UserError&) {
            continue;   // heads, experts, layers or stage sizes do not fit
          }
          all.push_back(candidate);
        }
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [&](const PlannedLayout& a, const PlannedLayout& b) {
    const bool a_fits = a.bytes <= planned.memory, b_fits = b.bytes <= planned.memory;
    if (a_fits != b_fits) return a_fits;
    return a_fits ? a.seconds < b.seconds : a.bytes < b.bytes;
  });
  return all;
}

OrderedJson layout_json(const Degrees& d) { return {{"tp", d.tp}, {"ep", d.ep}, {"cp", d.cp}, {"pp", d.pp}, {"dp", d.dp}}; }

OrderedJson bytes_json(const RankBytes& b) {
  const auto whole = [](double x) { return static_cast<int64_t>(x); };
  return {{"weights", whole(b.weights)}, {"quantized", whole(b.quantized)}, {"scales", whole(b.scales)}, {"optimizer", whole(b.optimizer)},
          {"activations", whole(b.activations)}, {"buffers", whole(b.buffers)}, {"total", whole(b.total())}};
}

OrderedJson describe_rank(const Planned& planned, const Degrees& degrees, int world, int rank) {
  const RankEstimate estimate = planned.rank(degrees, world, rank);
  OrderedJson groups = OrderedJson::object();
  for (const char* name : kGroups) groups[name] = Mesh::group_ranks(degrees, world, rank, name);
  return {{"rank", rank},
          {"groups", groups},
          {"layers", {estimate.layers.begin, estimate.layers.end}},
          {"experts", {estimate.experts.begin, estimate.experts.end}},
          {"parameters", estimate.parameters},
          {"bytes", bytes_json(estimate.bytes)},
          {"flops", estimate.flops},
          {"sent_bytes", estimate.sent_bytes}};
}

std::string words(const Degrees& d) { return fmt::format("tp {} ep {} cp {} pp {} dp {}", d.tp, d.ep, d.cp, d.pp, d.dp); }

void print_plan(const OrderedJson& document, const std::vector<PlannedLayout>& all, double memory) {
  std::string text = fmt::format("{} ranks: {}\n", document["world"].get<int>(), words(all[0].degrees));
  const auto& first = document["ranks"][0];
  text += fmt::format("rank 0: layers {}..{}, {} parameters; GB:", first["layers"][0].get<int64_t>(), first["layers"][1].get<int64_t>() - 1, first["parameters"].get<int64_t>());
  for (const auto& [name, bytes] : first["bytes"].items()) text += fmt::format(" {} {:.2f}", name, bytes.get<double>() / 1e9);
  text += fmt::format("\nlargest rank {:.2f} GB of {:.2f}: {}\n\nlayouts, fastest first (times are estimates):\n", all[0].bytes / 1e9, memory / 1e9,
                      document["fits"].get<bool>() ? "fits" : "DOES NOT FIT");
  for (std::size_t i = 0; i < std::min(kShownPlannedLayouts, all.size()); ++i)
    text += fmt::format("  {:<34} {:>10.3f} s a step {:>9.2f} GB{}\n", words(all[i].degrees), all[i].seconds, all[i].bytes / 1e9, all[i].bytes <= memory ? "" : "  does not fit");
  if (all.size() > kShownPlannedLayouts) text += fmt::format("  and {} more (--json lists them)\n", all.size() - kShownPlannedLayouts);
  print_text(text);
}

int parse_world(const std::string& text) {
  int world = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), world);
  if (error != std::errc() || end != text.data() + text.size() || world < 1 || world > 1 << 16)
    throw UserError(fmt::format("--world {}: a number of ranks from 1 to 65536, or auto", text));
  return world;
}

ExitCode PlanCommand::run(Context& context) {
  Planned planned;
  planned.config = command_config(context.common);
  if (planned.config.model.path.empty()) throw UserError("model.path is missing\nhint: -c run.yaml, or -o model.path=FOLDER (its config.json is enough)");
  planned.model = read_model_config(resolve_model_folder(planned.config.model.path));
  planned.specs = projections(planned.model);
  planned.plan = make_quant_plan(planned.config.quantize, planned.config.train.act_scales, planned.specs);
  planned.compute = planned.config.model.dtype == "auto" ? at::kBFloat16 : context.compute.dtype;
  planned.machine = {tflops_ * 1e12, bandwidth_ * 1e9};
  planned.memory = static_cast<double>(parse_size(memory_));
  if (!(tflops_ > 0) || !(bandwidth_ > 0)) throw UserError("--tflops and --bandwidth must be positive");

  int world = world_ == "auto" ? 1 : parse_world(world_);
  std::vector<PlannedLayout> all = candidates(planned, context.common, world);
  while (world_ == "auto" && (all.empty() || all[0].bytes > planned.memory) && world < kLargestAutoWorld) {
    world *= 2;
    all = candidates(planned, context.common, world);
  }
  if (all.empty())
    throw UserError(fmt::format("no layout of {} ranks fits the model ({} layers, {} heads, {} key and value heads, {} experts) and the given degrees\nhint: change --world or the degrees",
                                world, planned.model.layers, planned.model.heads, planned.model.kv_heads, planned.model.experts));
  const Degrees& chosen = all[0].degrees;
  OrderedJson document = {{"model", planned.config.model.path}, {"format", planned.config.quantize.format}, {"dtype", compute_dtype_name(planned.compute)}, {"world", world},
                          {"layout", layout_json(chosen)}, {"memory", static_cast<int64_t>(planned.memory)}, {"fits", all[0].bytes <= planned.memory},
                          {"assumed", {{"tflops", tflops_}, {"bandwidth_gb_s", bandwidth_}}}, {"ranks", OrderedJson::array()}, {"candidates", OrderedJson::array()}};
  for (int rank = 0; rank < world; ++rank) document["ranks"].push_back(describe_rank(planned, chosen, world, rank));
  for (const PlannedLayout& candidate : all)
    document["candidates"].push_back({{"layout", layout_json(candidate.degrees)}, {"seconds", candidate.seconds}, {"bytes", static_cast<int64_t>(candidate.bytes)},
                                      {"fits", candidate.bytes <= planned.memory}});
  if (!out_.empty()) write_file_atomic(out_, document.dump(2) + "\n");
  if (context.common.json) print_json(document);
  else print_plan(document, all, planned.memory);
  return all[0].bytes <= planned.memory ? ExitCode::kOk : ExitCode::kVerdictFailed;
}

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace scalewright
