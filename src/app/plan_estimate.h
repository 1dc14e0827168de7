// What one rank of a layout holds, computes and sends in a training step, from the architecture alone.
#pragma once
#include "comm/mesh.h"
#include "config/config.h"
#include "model/config.h"
#include "model/projection_part.h"
#include "model/quant_plan.h"

namespace scalewright {

/// Assumptions about the machine, for times.
struct PlannedMachine {
  double flops = 100e12;       // a rank's matrix products a second
  double bandwidth = 50e9;     // bytes a second that a rank sends
};

struct RankBytes {
  double weights = 0;       // weights, norms, embeddings as they lie in memory
  double quantized = 0;     // the fake-quantized copy of the projections
  double scales = 0;        // scales, their references and gradients
  double optimizer = 0;     // AdamW's two moments of the scales
  double activations = 0;   // kept for backward, of all micro-batches in flight
  double buffers = 0;       // the loss's chunks, gathered tensors, the largest layer in use
  double total() const { return weights + quantized + scales + optimizer + activations + buffers; }
};

struct RankEstimate {
  int64_t parameters = 0;
  IndexRange layers, experts;
  RankBytes bytes;
  double flops = 0;          // of a step: teacher, student, backward
  double sent_bytes = 0;     // of a step
  double seconds = 0;        // of a step on the machine, the pipeline's idle time included
};

/// `specs`: projections(model). `compute`: the dtype that the ranks compute in. Throws UserError when the degrees do not fit the model.
RankEstimate estimate_rank(const ModelConfig& model, const std::vector<ProjectionSpec>& specs, const Config& config, const QuantPlan& plan, at::ScalarType compute, const Mesh& mesh,
                           const PlannedMachine& machine);

}  // namespace scalewright
