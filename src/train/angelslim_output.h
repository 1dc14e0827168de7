// The files that users of AngelSlim's MCoreQAD expect in the run folder (output.style: angelslim), as safetensors instead of pickle.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "config/config.h"

namespace scalewright {

/// <run>/scales_rank0_stepN.safetensors, for the last step also scales_rank0.safetensors, and angelslim_config.json (the settings
/// in MCoreQAD's words). One rank holds the whole model's scales under our layout-free names.
void write_angelslim_scales(const std::filesystem::path& run, const Config& config, const std::map<std::string, at::Tensor>& scales, int64_t step,
                            bool last);

}  // namespace scalewright
