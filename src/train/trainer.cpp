#include "train/trainer.h"

#include <chrono>
#include <csignal>

#include "base/error.h"
#include "base/failpoint.h"
#include "comm/tensor_map.h"
#include "ops/tensor_memory.h"
#include "store/checkpoint.h"
#include "train/angelslim_output.h"
#include "train/metrics_writer.h"
#include "train/optimizer.h"
#include "train/resume.h"
#include "train/schedule.h"
#include "train/signal.h"
#include "train/step_log.h"
#include "train/training_step.h"

namespace scalewright {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool is_multiple(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

/// A loaded checkpoint's tensors: the quantizers', and the optimizer's.
std::pair<std::map<std::string, at::Tensor>, std::map<std::string, at::Tensor>> split_tensors(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> quantizers, optimizer;
  for (const auto& [name, tensor] : tensors) (name.starts_with("adam.") ? optimizer : quantizers)[name] = tensor;
  return {quantizers, optimizer};
}

/// Share of the layers whose forward pass is computed again.
double recomputed_share(const Decoder& decoder, const TrainSection& options) {
  if (!options.recompute) return 0;
  const double layers = static_cast<double>(decoder.config().layers), stages = decoder.mesh().pp().size();
  return options.recompute_layers == 0 ? 1 : std::min(1.0, static_cast<double>(options.recompute_layers) * stages / layers);
}

class Run {
 public:
  explicit Run(const TrainInputs& in)
      : in_(in), options_(in.config.train), folder_(checkpoints_folder(in.run)), optimizer_(options_, in.decoder.trainables()),
        resumed_(continue_run()), guard_(options_.max_skipped, state_.skipped, state_.skipped_in_a_row),
        step_log_(in.decoder.config(), 4 + recomputed_share(in.decoder, options_), options_.steps, state_.interval) {
    if (in.mesh.first()) metrics_.emplace(in.run, resumed_);
  }

  TrainOutcome operator()() {
    const auto start = std::chrono::steady_clock::now();
    if (in_.mesh.first()) warn_of_damage();
    if (resumed_) in_.log.info("resuming from step {} of {}", state_.step, options_.steps);
    else validate_before();
    while (state_.step < options_.steps) {
      one_step();
      const int64_t step = state_.step;
      const int signal = stop_asked();
      const bool last = step == options_.steps, saves = last || signal != 0 || is_multiple(step, options_.save_every);
      if (last || is_multiple(step, options_.log_every)) log_interval();
      if (last || is_multiple(step, options_.validate_every)) validate_now(saves);
      if (saves) save();
      if (signal != 0 && !last) stop(signal);
    }
    outcome_.seconds = seconds_since(start);
    return finished();
  }

 private:
  std::optional<int64_t> continue_run() {
    const std::optional<int64_t> step = resume_step(options_.resume, in_.run);
    if (!step) return step;
    const std::filesystem::path path = checkpoint_path(folder_, *step);
    const Checkpoint checkpoint = load_checkpoint(path);
    check_same_run(checkpoint.state, in_.config, in_.identity, path.string());
    state_ = state_from_json(checkpoint.state, path.string());
    if (state_.step > options_.steps)
      throw UserError(fmt::format("{} is at step {}, beyond train.steps {}\nhint: raise train.steps, or set train.resume to an earlier step", path.string(),
                                  state_.step, options_.steps));
    const auto [quantizers, moments] = split_tensors(checkpoint.tensors);
    in_.decoder.load_quantizer_state(quantizers, path.string());
    optimizer_.load_state(moments, state_.updates, path.string(), [&](const std::string& name) { return in_.decoder.of_other_stage(name); });
    return step;
  }

  void warn_of_damage() const {
    const std::string damaged = damaged_checkpoints(folder_, options_.resume == "auto" ? resumed_ : std::nullopt);
    if (!damaged.empty()) in_.log.warning("{}", damaged);
  }

  void one_step() {
    failpoint("train.step");
    const auto start = std::chrono::steady_clock::now();
    const int64_t rows = rows_of_step(options_, in_.mesh.dp().size()), step = state_.step;
    optimizer_.clear_gradients();
    const StepResult result = accumulate_gradients(in_.decoder, in_.teacher, in_.rows, options_, state_.consumed_rows, rows);
    norm_ = optimizer_.gradient_norm(&in_.mesh.world());
    lr_ = learning_rate(options_, step);
    const bool applied = guard_.accept(step + 1, result.mean_loss(), norm_);
    if (applied) {
      optimizer_.step(lr_, norm_);
      in_.decoder.refresh();
    } else {
      in_.log.warning("step {}: loss {} and gradient norm {} are not finite: skipped ({} so far)", step + 1, result.mean_loss(), norm_, guard_.skipped());
    }
    optimizer_.clear_gradients();
    step_log_.add(result, seconds_since(start), applied);
    state_.step = step + 1;
    state_.consumed_rows += rows;
    state_.tokens += result.tokens;
  }

  void log_interval() {
    auto values = step_log_.values(state_.step);
    values["gnorm"] = norm_;
    values["lr"] = lr_;
    values["skipped"] = static_cast<double>(guard_.skipped());
    values["tensor_memory"] = static_cast<double>(largest_of_ranks(peak_tensor_bytes()));
    in_.log.info("{}", step_log_.line(state_.step, values, guard_.skipped()));
    if (metrics_) metrics_->write("train", state_.step, values);
    outcome_.loss = values["loss"];
    step_log_.restart_interval();
  }

  ValidationScores validate_and_write() {
    const ValidationScores scores = validate(in_.decoder, in_.teacher, *in_.validation, options_.loss, options_.micro_batch);
    in_.log.info("validation {}/{} | loss {:.5f} | lm {:.4f} | fkl {:.5f} +- {:.5f} | rkl {:.5f} | cakld {:.5f} | top-1 {:.4f}", state_.step, options_.steps,
                 scores.loss, scores.lm, scores.fkl, scores.fkl_stderr, scores.rkl, scores.cakld, scores.top1);
    if (metrics_) metrics_->write("validation", state_.step, scores.values());
    return scores;
  }

  /// The starting point. Not under mcore_qad, whose expert activation references come from the first training batch.
  void validate_before() {
    if (!in_.validation || in_.config.quantize.numerics == "mcore_qad") return;
    state_.validation_before = validate_and_write().values();
  }

  void validate_now(bool saves) {
    if (!in_.validation) return;
    const ValidationScores scores = validate_and_write();
    state_.validation = scores.values();
    if (!saves || !std::isfinite(scores.loss)) return;
    if (state_.best_step > 0 && state_.best_score <= scores.loss) return;
    state_.best_step = state_.step;
    state_.best_score = scores.loss;
  }

  void save() {
    state_.updates = optimizer_.updates();
    state_.skipped = guard_.skipped();
    state_.skipped_in_a_row = guard_.in_a_row();
    state_.interval = step_log_.interval();
    Checkpoint checkpoint;
    checkpoint.tensors = in_.decoder.quantizer_state();
    checkpoint.tensors.merge(optimizer_.state());
    checkpoint.tensors = gather_on_first(in_.mesh.pp(), std::move(checkpoint.tensors));
    failpoint("train.save");
    if (in_.mesh.first()) write(checkpoint);
    in_.mesh.world().barrier();   // nobody goes on, or ends, before the checkpoint is there
  }

  void write(Checkpoint& checkpoint) {
    checkpoint.state = to_json(state_, in_.config, in_.identity);
    save_checkpoint(folder_, state_.step, checkpoint);
    if (in_.config.output.style == "angelslim") write_angelslim_scales(in_.run, in_.config, split_tensors(checkpoint.tensors).first, state_.step, state_.step == options_.steps);
    failpoint("train.saved");
    if (in_.on_checkpoint) in_.on_checkpoint(state_.step);
    std::vector<int64_t> pinned = in_.pinned ? in_.pinned() : std::vector<int64_t>();
    if (state_.best_step > 0) pinned.push_back(state_.best_step);
    prune_checkpoints(folder_, options_.keep_last, options_.keep_every, pinned);
  }

  int64_t largest_of_ranks(int64_t value) const {
    if (in_.mesh.world().alone()) return value;
    at::Tensor largest = at::full({1}, value, at::kLong);
    in_.mesh.world().all_reduce(largest, Reduce::kMax);
    return largest.item<int64_t>();
  }

  /// A signal that any rank got: all stop after the same step.
  int stop_asked() const { return static_cast<int>(largest_of_ranks(stop_.asked())); }

  [[noreturn]] void stop(int signal) const {
    in_.mesh.dismiss_watchdog();
    throw StoppedError(fmt::format("stopped by {} after step {} of {}; saved in {}\nhint: run the same command again to continue",
                                   signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : "SIGUSR1", state_.step, options_.steps,
                                   checkpoint_path(folder_, state_.step).string()));
  }

  TrainOutcome finished() {
    if (options_.steps > 0 && optimizer_.updates() == 0)
      throw NonFiniteError(fmt::format("none of the {} steps was finite: nothing was learned\nhint: look at the warnings above; lower train.lr or train.loss.temperature", options_.steps));
    outcome_.steps = state_.step;
    outcome_.resumed_from = resumed_.value_or(0);
    outcome_.skipped = guard_.skipped();
    outcome_.tokens = state_.tokens;
    outcome_.validation_before = state_.validation_before;
    outcome_.validation = state_.validation;
    outcome_.best_step = state_.best_step;
    outcome_.best_score = state_.best_score;
    outcome_.checkpoint = checkpoint_path(folder_, state_.step);
    return outcome_;
  }

  const TrainInputs& in_;
  const TrainSection& options_;
  std::filesystem::path folder_;
  TrainState state_;
  AdamW optimizer_;
  std::optional<int64_t> resumed_;
  NonFiniteGuard guard_;
  std::optional<MetricsWriter> metrics_;   // on the first rank
  StepLog step_log_;
  StopSignal stop_;
  double norm_ = 0, lr_ = 0;
  TrainOutcome outcome_;
};

}  // namespace

TrainOutcome train(const TrainInputs& inputs) { return Run(inputs)(); }

}  // namespace scalewright
