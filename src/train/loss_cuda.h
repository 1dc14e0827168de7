// The per-token loss on CUDA tensors.
#pragma once
#include <span>

#include <ATen/core/Tensor.h>

#include "train/token_loss.h"

namespace scalewright::cuda {

/// Whether the kernel has this loss: all but the top-k ones.
bool has_token_losses(const TokenLossOptions& options, int64_t vocabulary);

/// As token_losses_cpu; labels [n] int64 on the device too. Queues work on the current stream and returns the losses where they will
/// be: bytes on the device, for read_token_losses.
at::Tensor token_losses(const TokenLossOptions& options, at::Tensor& student_TV, const at::Tensor& teacher_TV, const at::Tensor& labels);

/// The losses of several calls, in order; waits for the device once.
std::vector<TokenLoss> read_token_losses(std::span<const at::Tensor> losses);

}  // namespace scalewright::cuda
