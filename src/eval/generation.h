// Generation with a cache of keys and values: prefill as packed documents, then one token a step for all unfinished sequences.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/decoder.h"

namespace scalewright {

struct GenerationOptions {
  int64_t max_new_tokens = 64;    // without the stop token, at most so many
  int64_t batch = 64;             // sequences generated together
  double temperature = 0;         // 0: greedy
  double top_p = 1;               // the smallest set of most likely tokens with at least this probability (sampling only)
  std::uint64_t seed = 0;
  std::function<void(int64_t sequences)> progress;   // called when so many more sequences are finished; may be empty
};

struct Prompt {
  std::vector<int32_t> ids;       // not empty
  std::uint64_t stream = 0;       // whose random numbers: token t of the answer is drawn with Philox(seed, stream) at t
};

struct Generated {
  std::vector<int32_t> ids;       // without the stop token
  bool stopped = false;           // a stop token of the model ended it; false: max_new_tokens did
};

/// The index of the next token given its logits [V]: the first largest when temperature is 0, else drawn from
/// softmax(logits / temperature) restricted to the nucleus of top_p by the uniform number in [0, 1).
int64_t choose_token(const at::Tensor& logits_V, double temperature, double top_p, double uniform);

/// Answers in the order of the prompts. An answer depends on its prompt, stream and the options but, in exact arithmetic, not on the
/// batch. Throws DataError when the model names no stop token, NonFiniteError when logits are not finite.
std::vector<Generated> generate(Decoder& decoder, Mode mode, std::span<const Prompt> prompts, const GenerationOptions& options);

}  // namespace scalewright
