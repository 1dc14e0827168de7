// The per-token loss on a GPU, on plain device pointers; only queues work on `stream`.
#pragma once
#include "ops/cuda_types.h"
#include "train/token_loss.h"

namespace scalewright::cuda {

/// As token_losses_cpu, without top_k: student [tokens, vocabulary] (float64 or float32) is overwritten with the gradient when
/// options.gradient is set; teacher may be nullptr; labels [tokens]; out [tokens]. Sums run in the CPU's order; logarithms and, for jsd,
/// log1p and expm1 are the device's own and may differ from the CPU's in the last bit.
void launch_token_losses(const TokenLossOptions& options, Element element, void* student, const void* teacher, const int64_t* labels, int64_t tokens,
                         int64_t vocabulary, TokenLoss* out, cudaStream_t stream);

}  // namespace scalewright::cuda
