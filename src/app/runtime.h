// From the options that every command takes to where and how it computes.
#pragma once
#include "app/command.h"

namespace scalewright {

struct Runtime {
  Mesh mesh;
  Compute compute;
};

/// Sets the number of threads, checks the device, resolves the dtype (options first, then the configuration) and makes
/// the mesh. Logs the notes of a translated configuration. Throws UserError (no such device, more ranks than this build
/// runs, a bad file).
Runtime start_runtime(const CommonOptions& common, Log& log, const World& world);

/// "auto" is bfloat16 on a GPU and where the CPU multiplies bfloat16 itself, else float32. Throws UserError for an
/// unknown name.
at::ScalarType resolve_dtype(const std::string& name, const at::Device& device);

/// The name of a compute type: float64, float32 or bfloat16.
std::string compute_dtype_name(at::ScalarType dtype);

}  // namespace scalewright
