#include "train/validation.h"

#include "model/pipeline.h"
#include "train/batch_loss.h"

namespace scalewright {

namespace {

ValidationScores scores_of(const LossSums& sums) {
  ValidationScores scores;
  scores.tokens = sums.tokens;
  if (sums.tokens == 0) return scores;
  const double n = static_cast<double>(sums.tokens);
  scores.loss = sums.loss / n;
  scores.lm = sums.lm / n;
  scores.fkl = sums.fkl / n;
  scores.rkl = sums.rkl / n;
  scores.cakld = sums.cakld / n;
  scores.top1 = static_cast<double>(sums.top1_agree) / n;
  if (sums.tokens > 1) scores.fkl_stderr = std::sqrt(std::max(0.0, sums.fkl_squared / n - scores.fkl * scores.fkl) / (n - 1));
  return scores;
}

}  // namespace

std::map<std::string, double> ValidationScores::values() const {
  return {{"tokens", static_cast<double>(tokens)}, {"loss", loss}, {"lm", lm}, {"fkl", fkl}, {"fkl_stderr", fkl_stderr}, {"rkl", rkl}, {"cakld", cakld}, {"top1", top1}};
}

ValidationScores validate(Decoder& decoder, Teacher& teacher, const RowSource& source, const LossSection& loss, int64_t batch) {
  at::NoGradGuard no_grad;
  LossSection options = loss;
  options.temperature = 1;
  options.top_k = 0;
  ForwardOptions forward;
  forward.mode = Mode::kStudent;
  ExactLossSums sums;
  for (int64_t begin = 0; begin < source.size(); begin += batch) {
    const Batch rows = make_ordered_batch(source, begin, std::min(batch, source.size() - begin));
    if (rows.valid_tokens() == 0) continue;
    const auto local = std::make_shared<const LocalBatch>(localize(rows, decoder.mesh()));
    const at::Tensor target = teacher.hidden(local);
    const at::Tensor student = forward_stage(decoder, local, forward).output;
    if (!decoder.last_stage()) continue;
    sums += batch_loss(decoder, options, student, target, teacher.head(), *local, 1).sums;
  }
  return scores_of(sums.total(decoder.mesh().world()));
}

}  // namespace scalewright
