// Scales to start from: a run, a checkpoint or a scales file of ours.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace scalewright {

/// The quantizer state ("alpha/...", "ref/...") held by `path`: a run folder (its newest checkpoint), a checkpoint folder
/// (step_N), or a safetensors file. Throws DataError for anything else; a pickle (.pt, .pkl, or by its first bytes) is refused,
/// because reading one can run any code that its author put into it.
std::map<std::string, at::Tensor> read_scales(const std::filesystem::path& path);

}  // namespace scalewright
