#include "eval/likelihood.h"

#include <numeric>

#include "base/error.h"

namespace scalewright {

namespace {

/// Continuations of similar length, as many as the options allow; indices into `continuations`.
std::vector<std::vector<int64_t>> make_batches(std::span<const Continuation> continuations, const LikelihoodOptions& options) {
  const auto length = [&](int64_t i) { return static_cast<int64_t>(continuations[i].prompt.size() + continuations[i].tokens.size()); };
  std::vector<int64_t> order(continuations.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) < length(b); });
  std::vector<std::vector<int64_t>> batches;
  int64_t tokens = 0;
  for (int64_t i : order) {
    const bool full = batches.empty() || static_cast<int64_t>(batches.back().size()) >= options.batch || tokens + length(i) > options.batch_tokens;
    if (full) {
      batches.emplace_back();
      tokens = 0;
    }
    batches.back().push_back(i);
    tokens += length(i);
  }
  return batches;
}

/// The scored positions of a batch, one entry a token.
struct Targets {
  std::vector<int64_t> rows, labels, owners;   // position in the batch, token predicted there, continuation
};

Batch make_batch(std::span<const Continuation> continuations, const std::vector<int64_t>& members, Targets& targets) {
  std::vector<Document> documents;
  int64_t begin = 0;
  for (int64_t i : members) {
    const Continuation& c = continuations[i];
    Document document{c.prompt, std::vector<std::uint8_t>(c.prompt.size(), 0), i};
    document.ids.insert(document.ids.end(), c.tokens.begin(), c.tokens.end());
    document.is_target.resize(document.ids.size(), 1);
    for (std::size_t t = 0; t < c.tokens.size(); ++t) {
      targets.rows.push_back(begin + static_cast<int64_t>(c.prompt.size() + t) - 1);
      targets.labels.push_back(c.tokens[t]);
      targets.owners.push_back(i);
    }
    begin += static_cast<int64_t>(document.ids.size());
    documents.push_back(std::move(document));
  }
  return batch_from_documents(documents);
}

/// log softmax of the logits of some rows, in float64: a divergence of 1e-6 is a difference of nearly equal logarithms.
at::Tensor log_probabilities(const Decoder& decoder, const at::Tensor& hidden_TH, const at::Tensor& rows, const char* whose) {
  const at::Tensor logits = decoder.logits(hidden_TH.index_select(0, rows.to(hidden_TH.device())));
  if (!at::isfinite(logits).all().item<bool>()) throw NonFiniteError(fmt::format("the logits of the {} hold NaN or infinity", whose));
  return at::log_softmax(logits.to(at::kCPU, at::kDouble), 1);
}

void add_chunk(const Targets& targets, int64_t begin, const at::Tensor& model, const at::Tensor& reference, std::vector<ContinuationScore>& out) {
  const int64_t count = model.size(0);
  const at::Tensor labels = at::tensor(std::vector<int64_t>(targets.labels.begin() + begin, targets.labels.begin() + begin + count), at::kLong);
  const at::Tensor picked = model.gather(1, labels.unsqueeze(1)).squeeze(1).contiguous();
  at::Tensor fkl, agree;
  if (reference.defined()) {
    fkl = (reference.exp() * (reference - model)).sum(1).contiguous();
    agree = (reference.argmax(1) == model.argmax(1)).to(at::kLong);
  }
  for (int64_t t = 0; t < count; ++t) {
    ContinuationScore& score = out[targets.owners[begin + t]];
    ++score.tokens;
    score.log_likelihood += picked.const_data_ptr<double>()[t];
    if (!reference.defined()) continue;
    score.fkl += fkl.const_data_ptr<double>()[t];
    score.top1_agree += agree.const_data_ptr<int64_t>()[t];
  }
}

}  // namespace

std::vector<ContinuationScore> score_continuations(Decoder& decoder, Mode mode, const Reference& reference,
                                                   std::span<const Continuation> continuations, const LikelihoodOptions& options) {
  at::NoGradGuard no_grad;
  std::vector<ContinuationScore> out(continuations.size());
  for (const std::vector<int64_t>& members : make_batches(continuations, options)) {
    Targets targets;
    const Batch batch = make_batch(continuations, members, targets);
    ForwardOptions forward;
    forward.mode = mode;
    const at::Tensor hidden = decoder.forward(batch, forward);
    at::Tensor reference_hidden;
    if (reference.decoder) {
      forward.mode = reference.mode;
      reference_hidden = reference.decoder->forward(batch, forward);
    }
    const at::Tensor rows = at::tensor(targets.rows, at::kLong);
    const int64_t most = std::max<int64_t>(1, options.logit_values / decoder.config().vocabulary);
    for (int64_t begin = 0; begin < rows.numel(); begin += most) {
      const at::Tensor chunk = rows.narrow(0, begin, std::min(most, rows.numel() - begin));
      const at::Tensor log_p = log_probabilities(decoder, hidden, chunk, "model");
      at::Tensor log_q;
      if (reference.decoder) log_q = log_probabilities(*reference.decoder, reference_hidden, chunk, "reference model");
      add_chunk(targets, begin, log_p, log_q, out);
    }
    if (options.progress) options.progress(static_cast<int64_t>(members.size()));
  }
  return out;
}

}  // namespace scalewright
