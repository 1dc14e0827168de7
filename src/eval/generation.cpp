#include "eval/generation.h"

#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace scalewright {

namespace {

/// Prompts that go through the model together, and what they have become so far.
class Generator {
 public:
  Generator(Decoder& decoder, Mode mode, std::span<const Prompt> prompts, const GenerationOptions& options, std::vector<Generated>& out)
      : decoder_(decoder), mode_(mode), prompts_(prompts), options_(options), out_(out) {}

  /// Generates the answers of `sequences` (indices of prompts).
  void run(std::vector<int64_t> sequences) {
    running_ = std::move(sequences);
    at::Tensor hidden_BH = prefill();
    while (true) {
      const std::vector<int64_t> next = choose(decoder_.logits(hidden_BH));
      const std::vector<int64_t> kept = accept(next);
      if (running_.empty()) return;
      if (kept.size() < next.size()) cache_.select(kept);
      std::vector<int64_t> ids;
      for (int64_t row : kept) ids.push_back(next[row]);
      hidden_BH = decoder_.step(at::tensor(ids, at::kLong), cache_, mode_);
    }
  }

 private:
  at::Tensor prefill() {
    std::vector<Document> documents;
    for (int64_t i : running_) documents.push_back({prompts_[i].ids, std::vector<std::uint8_t>(prompts_[i].ids.size(), 0), i});
    const Batch batch = batch_from_documents(documents);
    ForwardOptions forward;
    forward.mode = mode_;
    forward.fill_cache = &cache_;
    const at::Tensor hidden_TH = decoder_.forward(batch, forward);
    std::vector<int64_t> last;
    for (std::size_t b = 1; b < batch.offsets.size(); ++b) last.push_back(batch.offsets[b] - 1);
    return hidden_TH.index_select(0, at::tensor(last, at::kLong).to(hidden_TH.device()));
  }

  std::vector<int64_t> choose(const at::Tensor& logits_BV) const {
    if (!at::isfinite(logits_BV).all().item<bool>()) throw NonFiniteError("generation: the model's logits hold NaN or infinity");
    std::vector<int64_t> next(running_.size());
    if (options_.temperature == 0) {
      const at::Tensor best = logits_BV.argmax(1).to(at::kCPU);
      std::copy_n(best.const_data_ptr<int64_t>(), next.size(), next.begin());
      return next;
    }
    const at::Tensor logits = logits_BV.to(at::kCPU);
    for (std::size_t b = 0; b < next.size(); ++b) {
      const Philox random(options_.seed, prompts_[running_[b]].stream);
      const double uniform = random.uniform(out_[running_[b]].ids.size());
      next[b] = choose_token(logits[b], options_.temperature, options_.top_p, uniform);
    }
    return next;
  }

  /// Appends the chosen tokens; returns the rows that go on and leaves only their sequences running.
  std::vector<int64_t> accept(const std::vector<int64_t>& next) {
    const std::vector<int64_t>& stops = decoder_.config().eos;
    std::vector<int64_t> rows, running;
    for (std::size_t b = 0; b < next.size(); ++b) {
      Generated& answer = out_[running_[b]];
      answer.stopped = std::find(stops.begin(), stops.end(), next[b]) != stops.end();
      const bool full = static_cast<int64_t>(answer.ids.size()) == options_.max_new_tokens;
      if (answer.stopped || full) continue;
      answer.ids.push_back(static_cast<int32_t>(next[b]));
      rows.push_back(static_cast<int64_t>(b));
      running.push_back(running_[b]);
    }
    if (options_.progress && running.size() < running_.size()) options_.progress(static_cast<int64_t>(running_.size() - running.size()));
    running_ = std::move(running);
    return rows;
  }

  Decoder& decoder_;
  Mode mode_;
  std::span<const Prompt> prompts_;
  const GenerationOptions& options_;
  std::vector<Generated>& out_;
  std::vector<int64_t> running_;
  KvCache cache_;
};

}  // namespace

int64_t choose_token(const at::Tensor& logits_V, double temperature, double top_p, double uniform) {
  if (temperature == 0) return logits_V.argmax().item<int64_t>();
  const at::Tensor probabilities = at::softmax(logits_V.to(at::kDouble) / temperature, 0);
  const auto [sorted, order] = probabilities.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const double* p = sorted.const_data_ptr<double>();
  const int64_t* token = order.const_data_ptr<int64_t>();
  int64_t count = 0;
  double mass = 0;
  while (count < sorted.numel() && (count == 0 || mass < top_p)) mass += p[count++];
  double target = uniform * mass;
  for (int64_t i = 0; i < count; ++i) {
    target -= p[i];
    if (target < 0) return token[i];
  }
  return token[count - 1];   // uniform * mass rounded up to the mass
}

std::vector<Generated> generate(Decoder& decoder, Mode mode, std::span<const Prompt> prompts, const GenerationOptions& options) {
  SW_CHECK(options.batch > 0 && options.max_new_tokens > 0, "batch {}, max_new_tokens {}", options.batch, options.max_new_tokens);
  if (decoder.config().eos.empty())
    throw DataError("the model names no stop token, so that no answer would ever end\nhint: set eos_token_id in config.json or generation_config.json");
  at::NoGradGuard no_grad;
  std::vector<Generated> out(prompts.size());
  // Prompts of about the same length share a batch: their caches are padded least.
  std::vector<int64_t> order(prompts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return prompts[a].ids.size() < prompts[b].ids.size(); });
  for (std::size_t begin = 0; begin < order.size(); begin += static_cast<std::size_t>(options.batch)) {
    const std::size_t end = std::min(order.size(), begin + static_cast<std::size_t>(options.batch));
    Generator(decoder, mode, prompts, options, out).run({order.begin() + begin, order.begin() + end});
  }
  return out;
}

}  // namespace scalewright
