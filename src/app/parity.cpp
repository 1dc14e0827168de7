// parity: computes a model on given tokens and compares with known answers (logits, losses, gradients of the scales).
#include "app/command.h"
#include "base/error.h"
#include "comm/tensor_map.h"
#include "model/pipeline.h"
#include "store/safetensors.h"
#include "train/batch_loss.h"

namespace scalewright {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

struct Distance {
  double max_abs = 0, rel_l2 = 0;
};

// Relative L2 distance of the whole tensor: |got - want| / |want| (absolute where want is zero).
Distance distance(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor g = got.to(at::kDouble).flatten(), w = want.to(at::kDouble).flatten();
  const at::Tensor d = g - w;
  const double norm = w.norm().item<double>();
  return {d.numel() ? d.abs().max().item<double>() : 0.0, d.norm().item<double>() / (norm > 0 ? norm : 1.0)};
}

double relative(double got, double want) { return std::abs(got - want) / (want != 0 ? std::abs(want) : 1.0); }

// Everything parity computes, under the names of the expected file.
struct Computed {
  Tensors tensors;
  std::vector<std::string> losses, gradients;  // names without the format's prefix
};

class ParityCommand : public Command {
 public:
  std::string name() const override { return "parity"; }
  std::string summary() const override { return "computes a model and compares with given answers"; }
  std::vector<Option> options() override {
    return {{"--model", "Hugging Face folder", &model_, true},
            {"--expected", "safetensors file with input_ids, labels and whichever answers are known", &expected_, true},
            {"--format", "quantization format of the student (default: none, the model itself)", &format_},
            {"--numerics", "rules of the student: mcore_qad (default here) or deploy", &numerics_, false, {"mcore_qad", "deploy"}},
            {"--grad", "also d(fkl)/d(alpha) of every scale", &grad_},
            {"--tolerance", "largest relative difference (relative L2 for tensors) that passes", &tolerance_},
            {"--out", "write the own logits, losses and gradients to this safetensors file", &out_}};
  }
  RankUse ranks() const override { return RankUse::kAll; }
  ExitCode run(Context& context) override;

 private:
  Computed compute(Context& context, Decoder& decoder, const at::Tensor& ids, const at::Tensor& labels) const;
  OrderedJson compare(const Computed& computed, const Tensors& expected, bool& passed) const;
  std::string prefix() const { return format_.empty() ? "" : format_ + "."; }

  std::string model_, expected_, format_, numerics_ = "mcore_qad", out_;
  bool grad_ = false;
  double tolerance_ = 1e-3;
};

// One format for every projection of the model.
QuantPlan whole_model_plan(const ModelConfig& config, const std::string& format, const std::string& numerics) {
  QuantizeSection quantize;
  quantize.format = format;
  quantize.numerics = numerics;
  return make_quant_plan(quantize, false, projections(config));
}

at::Tensor required(const Tensors& tensors, const std::string& name, const std::string& path) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw DataError(fmt::format("{}: no tensor '{}'\nhint: parity needs input_ids [B,S] and labels [B,S]", path, name));
  if (found->second.dim() != 2 || !at::isIntegralType(found->second.scalar_type(), false))
    throw DataError(fmt::format("{}: '{}' must be a two-dimensional integer tensor", path, name));
  return found->second.to(at::kLong);
}

void check_tokens(const at::Tensor& ids, const at::Tensor& labels, int64_t vocabulary, const std::string& path) {
  if (ids.sizes() != labels.sizes()) throw DataError(fmt::format("{}: input_ids and labels differ in shape", path));
  if (ids.numel() == 0) throw DataError(fmt::format("{}: input_ids is empty", path));
  if (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= vocabulary || labels.max().item<int64_t>() >= vocabulary ||
      ((labels < 0) & (labels != -100)).any().item<bool>())
    throw DataError(fmt::format("{}: token ids must lie in 0..{} (labels may be -100)", path, vocabulary - 1));
}

Computed ParityCommand::compute(Context& context, Decoder& decoder, const at::Tensor& ids, const at::Tensor& labels) const {
  const Batch batch = batch_from_rows(ids, labels);
  const int64_t valid = batch.valid_tokens();
  const double scale = valid > 0 ? 1.0 / static_cast<double>(valid) : 0.0;
  const Mesh& mesh = decoder.mesh();
  const auto local = std::make_shared<const LocalBatch>(localize(batch, mesh));
  // The last stage knows the logits; the first one, where the answers are compared and written, gets them from there.
  const auto shape_logits = [&](const at::Tensor& hidden) {
    at::Tensor logits = at::empty({batch.tokens(), decoder.config().vocabulary}, context.compute.accurate_options());
    if (decoder.last_stage()) logits = decoder.gather_logits(hidden, *local, batch.tokens()).contiguous();
    mesh.pp().broadcast(logits, mesh.pp().size() - 1);
    return logits.view({ids.size(0), ids.size(1), -1}).to(at::kDouble);
  };
  const auto losses = [&](const LossSection& options, const at::Tensor& student, const at::Tensor& teacher) {
    LossResult result;
    if (decoder.last_stage()) result = batch_loss(decoder, options, student, teacher, teacher.defined() ? decoder.head() : at::Tensor(), *local, scale);
    return std::pair(result.loss, result.sums.total(mesh.world()));
  };
  const auto scalar = [&](double sum) { return at::scalar_tensor(sum * scale, at::kDouble); };

  Computed result;
  at::Tensor teacher;
  LossSection lm_only;
  lm_only.lm_weight = 1;
  lm_only.distill_weight = 0;
  {
    at::NoGradGuard no_grad;
    teacher = forward_stage(decoder, local, {.mode = Mode::kTeacher}).output;
    result.tensors["logits"] = shape_logits(teacher);
    result.tensors["lm_loss"] = scalar(losses(lm_only, teacher, {}).second.lm);
  }
  if (format_.empty()) return result;

  decoder.quantize(whole_model_plan(decoder.config(), format_, numerics_));
  if (decoder.needs_calibration()) {
    at::NoGradGuard no_grad;
    forward_stage(decoder, local, {.mode = Mode::kCalibrate});
    decoder.share_calibration();
  }
  at::AutoGradMode with_grad(grad_);
  const StagePass student = forward_stage(decoder, local, {.mode = Mode::kStudent});
  const auto [loss, sums] = losses(LossSection{}, student.output, teacher);
  if (grad_) backward_stage(decoder, student, loss);
  at::NoGradGuard no_grad;
  if (grad_) decoder.sum_gradients();
  result.tensors[prefix() + "logits"] = shape_logits(student.output.detach());
  for (const auto& [name, sum] : std::vector<std::pair<std::string, double>>{
           {"fkl", sums.fkl}, {"rkl", sums.rkl}, {"cakld", sums.cakld}, {"lm", sums.lm}}) {
    result.tensors[prefix() + name] = scalar(sum);
    result.losses.push_back(name);
  }
  if (!grad_) return result;
  Tensors gradients;
  for (const Trainable& trainable : decoder.trainables()) {
    at::Tensor gradient = trainable.tensor.grad().defined() ? trainable.tensor.grad() : at::zeros_like(trainable.tensor);
    if (trainable.placement) gradient = trainable.placement->gather(gradient);
    if (gradient.dim() == 3 && gradient.size(0) == 1) gradient = gradient.squeeze(0);
    gradients[trainable.name] = gradient.to(at::kDouble);
  }
  for (auto& [name, gradient] : gather_on_first(mesh.pp(), std::move(gradients))) {
    result.tensors[prefix() + "grad." + name] = gradient;
    result.gradients.push_back(name);
  }
  return result;
}

OrderedJson ParityCommand::compare(const Computed& computed, const Tensors& expected, bool& passed) const {
  passed = true;
  auto tensor = [&](const std::string& name) -> OrderedJson {
    const auto want = expected.find(name);
    if (want == expected.end()) return nullptr;
    const at::Tensor& got = computed.tensors.at(name);
    if (want->second.numel() != got.numel())
      throw DataError(fmt::format("{}: '{}' has {} elements, computed were {}", expected_, name, want->second.numel(), got.numel()));
    const Distance d = distance(got, want->second);
    passed = passed && d.rel_l2 <= tolerance_;  // false for NaN
    return {{"max_abs", d.max_abs}, {"rel_l2", d.rel_l2}};
  };
  auto scalar = [&](const std::string& name) -> OrderedJson {
    const double got = computed.tensors.at(name).item<double>();
    const auto want = expected.find(name);
    if (want == expected.end()) return {{"got", got}, {"want", nullptr}};
    const double value = want->second.to(at::kDouble).sum().item<double>();
    passed = passed && relative(got, value) <= tolerance_;
    return {{"got", got}, {"want", value}};
  };
  OrderedJson report;
  report["logits"] = tensor(prefix() + "logits");
  report["lm_loss"] = scalar("lm_loss");
  report["losses"] = OrderedJson::object();
  for (const std::string& name : computed.losses) report["losses"][name] = scalar(prefix() + name);
  report["grads"] = OrderedJson::object();
  for (const std::string& name : computed.gradients) {
    OrderedJson d = tensor(prefix() + "grad." + name);
    if (!d.is_null()) report["grads"][name] = std::move(d);
  }
  // A gradient that the file knows and we did not compute is a difference, not a detail.
  if (grad_)
    for (const auto& [name, value] : expected)
      if (name.starts_with(prefix() + "grad.") && !computed.tensors.count(name))
        throw DataError(fmt::format("{}: '{}' is not a scale of this model and format", expected_, name));
  return report;
}

void print_table(const OrderedJson& report) {
  const auto line = [](const std::string& name, const OrderedJson& value) {
    if (value.is_null()) return;
    if (value.contains("rel_l2"))
      fmt::print("{:<32} rel_l2 {:.3e}  max_abs {:.3e}\n", name, value["rel_l2"].get<double>(), value["max_abs"].get<double>());
    else if (value["want"].is_null())
      fmt::print("{:<32} {:.10g}\n", name, value["got"].get<double>());
    else
      fmt::print("{:<32} {:.10g}  expected {:.10g}\n", name, value["got"].get<double>(), value["want"].get<double>());
  };
  line("logits", report["logits"]);
  line("lm_loss", report["lm_loss"]);
  for (const auto& [name, value] : report["losses"].items()) line(name, value);
  for (const auto& [name, value] : report["grads"].items()) line("grad." + name, value);
}

std::vector<int64_t> all_ranks(const Mesh& mesh, int64_t value) {
  const at::Tensor all = mesh.world().all_gather(at::full({1}, value, at::kLong), std::vector<int64_t>(static_cast<std::size_t>(mesh.size()), 1));
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

ExitCode ParityCommand::run(Context& context) {
  if (!format_.empty()) find_format(format_);
  if (grad_ && format_.empty()) throw UserError("--grad needs --format: only scales have gradients here");
  const Tensors expected = load_tensors(expected_);
  const std::filesystem::path folder = resolve_model_folder(model_);
  const ModelConfig config = read_model_config(folder);
  const at::Tensor ids = required(expected, "input_ids", expected_), labels = required(expected, "labels", expected_);
  check_tokens(ids, labels, config.vocabulary, expected_);
  const ModelWeights weights(folder, config);
  if (context.common.dry_run) {
    return would(context, fmt::format("compute {} rows of {} tokens of {} ({} parameters)", ids.size(0), ids.size(1), folder.string(), parameter_count(config)));
  }
  const int64_t unit = format_.empty() ? 1 : column_unit(whole_model_plan(config, format_, numerics_));
  Decoder decoder(config, weights, context.compute, context.mesh, unit);
  const Computed computed = compute(context, decoder, ids, labels);
  bool passed = true;
  OrderedJson report;
  report["format"] = format_.empty() ? OrderedJson(nullptr) : OrderedJson(format_);
  report["numerics"] = numerics_;
  const Degrees& degrees = context.mesh.degrees();
  report["layout"] = {{"tp", degrees.tp}, {"ep", degrees.ep}, {"cp", degrees.cp}, {"pp", degrees.pp}, {"dp", degrees.dp}, {"sp", degrees.sp}};
  report["local_parameters"] = all_ranks(context.mesh, decoder.local_parameters());
  if (!context.mesh.first()) return ExitCode::kOk;   // the first rank compares
  report.update(compare(computed, expected, passed));
  if (!out_.empty()) save_tensors(out_, computed.tensors);
  if (context.common.json) print_json(report);
  else print_table(report);
  if (!passed) context.log.error("parity: a difference exceeds the tolerance {:g}", tolerance_);
  return passed ? ExitCode::kOk : ExitCode::kVerdictFailed;
}

}  // namespace

std::unique_ptr<Command> make_parity_command() { return std::make_unique<ParityCommand>(); }

}  // namespace scalewright
