// What the loss of one token is asked for and what it gives, without torch: the CPU and the CUDA kernels share it.
#pragma once
#include <cstdint>

namespace scalewright {

enum class DistillType { kForwardKl, kReverseKl, kCakld, kJsd };

struct TokenLossOptions {
  DistillType type = DistillType::kForwardKl;
  double lm_weight = 0, distill_weight = 1;
  double temperature = 1;
  int64_t top_k = 0;         // 0: the whole vocabulary
  bool tail = true;          // with top_k: one more outcome for the rest
  double jsd_beta = 0.5;
  double scale = 1;          // on the gradient only
  bool gradient = false;     // whether the student's logits are replaced by the gradient
};

/// Of one token; `loss` is lm_weight*lm + distill_weight*distill*temperature^2, without `scale`.
struct TokenLoss {
  double loss = 0, lm = 0, fkl = 0, rkl = 0, cakld = 0;
  bool top1_agree = false;
};

}  // namespace scalewright
