#include "train/training_step.h"

#include <deque>

#include "base/failpoint.h"
#include "model/pipeline.h"
#include "train/batch_loss.h"

namespace scalewright {

namespace {

std::vector<Batch> micro_batches(const RowSource& source, const TrainSection& options, int64_t first_row, int64_t rows, int64_t at_once) {
  std::vector<Batch> batches;
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    batches.push_back(make_batch(source, static_cast<std::uint64_t>(options.seed), first_row + begin, std::min(at_once, rows - begin)));
    batches.back().first_row = begin;
  }
  return batches;
}

void count_lengths(const Batch& batch, StepResult& result) {
  result.tokens += batch.tokens();
  for (std::size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    const double length = static_cast<double>(batch.offsets[d + 1] - batch.offsets[d]);
    result.squared_lengths += length * length;
  }
}

}  // namespace

int64_t rows_of_step(const TrainSection& options, int64_t data_parallel) {
  return options.global_batch > 0 ? options.global_batch : options.micro_batch * data_parallel;
}

StepResult accumulate_gradients(Decoder& decoder, Teacher& teacher, const RowSource& source, const TrainSection& options, int64_t first_row,
                                int64_t rows) {
  const Mesh& mesh = decoder.mesh();
  const std::vector<Batch> batches = micro_batches(source, options, first_row, rows, options.micro_batch * mesh.dp().size());
  int64_t valid = 0;
  for (const Batch& batch : batches) valid += batch.valid_tokens();
  StepResult result;
  ExactLossSums sums;
  ForwardOptions forward;
  forward.mode = Mode::kStudent;
  forward.recompute = options.recompute;
  forward.recompute_layers = options.recompute_layers;

  struct InFlight {
    StagePass pass;
    at::Tensor loss;
  };
  std::deque<InFlight> in_flight;
  const auto backward_oldest = [&] {
    failpoint("train.backward");
    backward_stage(decoder, in_flight.front().pass, in_flight.front().loss);
    in_flight.pop_front();
  };
  const auto ahead = static_cast<std::size_t>(mesh.pp().size() - 1 - mesh.pp().rank());
  for (const Batch& batch : batches) {
    count_lengths(batch, result);
    if (batch.valid_tokens() == 0) continue;
    const auto local = std::make_shared<const LocalBatch>(localize(batch, mesh));
    const at::Tensor target = teacher.hidden(local);
    failpoint("train.forward");
    InFlight micro{forward_stage(decoder, local, forward), {}};
    if (decoder.last_stage()) {
      const LossResult loss = batch_loss(decoder, options.loss, micro.pass.output, target, teacher.head(), *local, 1.0 / static_cast<double>(valid));
      micro.loss = loss.loss;
      sums += loss.sums;
    }
    in_flight.push_back(std::move(micro));
    if (in_flight.size() > ahead) backward_oldest();
  }
  while (!in_flight.empty()) backward_oldest();
  result.sums = sums.total(mesh.world());
  decoder.sum_gradients();
  return result;
}

}  // namespace scalewright
