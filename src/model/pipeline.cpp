#include "model/pipeline.h"

#include <torch/csrc/autograd/autograd.h>

namespace scalewright {

StagePass forward_stage(Decoder& decoder, const std::shared_ptr<const LocalBatch>& batch, ForwardOptions options) {
  const Mesh& mesh = decoder.mesh();
  StagePass pass;
  if (!decoder.first_stage()) {
    const int64_t tokens = batch->layout.own_tokens();
    pass.input = at::empty({tokens, decoder.config().hidden}, decoder.compute().options());
    mesh.pp().receive(pass.input, mesh.pp().rank() - 1);
    pass.input.requires_grad_(at::GradMode::is_enabled());
    options.input = pass.input;
  }
  pass.output = decoder.forward(batch, options);
  if (!decoder.last_stage()) mesh.pp().send(pass.output, mesh.pp().rank() + 1);
  return pass;
}

void backward_stage(Decoder& decoder, const StagePass& pass, const at::Tensor& loss) {
  const Group& pp = decoder.mesh().pp();
  if (decoder.last_stage()) {
    loss.backward();
  } else {
    at::Tensor gradient = at::empty_like(pass.output).detach();
    pp.receive(gradient, pp.rank() + 1);
    torch::autograd::backward({pass.output}, {gradient});
  }
  if (!decoder.first_stage()) pp.send(pass.input.grad().defined() ? pass.input.grad() : at::zeros_like(pass.input), pp.rank() - 1);
}

}  // namespace scalewright
