#include "train/training_step.h"

namespace scalewright {

namespace {

std::vector<Batch> micro_batches(const RowSource& source, const TrainSection& options, int64_t first_row, int64_t rows) {
  std::vector<Batch> batches;
  for (int64_t begin = 0; begin < rows; begin += options.micro_batch)
    batches.push_back(make_batch(source, static_cast<std::uint64_t>(options.seed), first_row + begin, std::min(options.micro_batch, rows - begin)));
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
  const std::vector<Batch> batches = micro_batches(source, options, first_row, rows);
  int64_t valid = 0;
  for (const Batch& batch : batches) valid += batch.valid_tokens();
  StepResult result;
  ForwardOptions forward;
  forward.mode = Mode::kStudent;
  forward.recompute = options.recompute;
  for (const Batch& batch : batches) {
    count_lengths(batch, result);
    if (batch.valid_tokens() == 0) continue;
    const at::Tensor target = teacher.hidden(batch);
    const at::Tensor student = decoder.forward(batch, forward);
    const LossResult loss = distillation_loss(decoder.compute(), options.loss, student, target, decoder.head(), teacher.head(),
                                              batch.labels.to(student.device()), 1.0 / static_cast<double>(valid));
    loss.loss.backward();
    result.sums += loss.sums;
  }
  return result;
}

}  // namespace scalewright
