// Teacher-forced scoring: how likely a model finds given continuations, and how far it is from a reference there.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/decoder.h"

namespace scalewright {

/// A text whose last tokens are scored given the ones before.
struct Continuation {
  std::vector<int32_t> prompt;      // not empty
  std::vector<int32_t> tokens;      // scored
};

/// Sums over the tokens of one continuation.
struct ContinuationScore {
  int64_t tokens = 0;
  double log_likelihood = 0;        // nats
  double fkl = 0;                   // forward KL(reference || model), nats; 0 without a reference
  int64_t top1_agree = 0;           // tokens where both have the same most likely token
};

struct LikelihoodOptions {
  int64_t batch = 64;               // continuations that go through the model together
  int64_t batch_tokens = 8192;      // and at most so many tokens, but for a single longer one
  int64_t logit_values = 1 << 23;   // logits that exist at a time: this many / vocabulary tokens
  std::function<void(int64_t continuations)> progress;   // may be empty
};

/// A reference model to diverge from: another mode of the same decoder, or another decoder with the same vocabulary.
struct Reference {
  Decoder* decoder = nullptr;       // nullptr: none
  Mode mode = Mode::kTeacher;
};

/// In the order of `continuations`. Throws NonFiniteError when logits are not finite.
std::vector<ContinuationScore> score_continuations(Decoder& decoder, Mode mode, const Reference& reference,
                                                   std::span<const Continuation> continuations, const LikelihoodOptions& options);

}  // namespace scalewright
