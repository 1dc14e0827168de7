// One pipeline stage's share of a forward and a backward pass: activations come from the stage before and go to the next, gradients
// the other way.
#pragma once
#include "model/decoder.h"

namespace scalewright {

/// What a stage keeps of a micro-batch between forward and backward.
struct StagePass {
  at::Tensor input;    // [t,H], a leaf; undefined on the first stage
  at::Tensor output;   // [t,H]
};

/// Receives (but on the first stage), computes, sends (but on the last stage).
StagePass forward_stage(Decoder& decoder, const std::shared_ptr<const LocalBatch>& batch, ForwardOptions options);

/// `loss`: the scalar of the last stage; undefined on the others, which receive their output's gradient.
void backward_stage(Decoder& decoder, const StagePass& pass, const at::Tensor& loss);

}  // namespace scalewright
