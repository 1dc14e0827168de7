// The only file that includes torch's CUDA headers.
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "ops/tensors_cuda.h"

namespace scalewright::cuda {

// Multi-GPU processes are one device each, chosen when the program starts; launches go to the current device.
cudaStream_t stream_of(const at::Tensor& t) { return c10::cuda::getCurrentCUDAStream(t.device().index()).stream(); }

void launch_failed(const char* kernel, const char* message) { throw BugError(fmt::format("the CUDA kernel {} did not start: {}", kernel, message)); }

}  // namespace scalewright::cuda
