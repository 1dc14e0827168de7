// Which checkpoint a run goes on from.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace scalewright {

/// <run>/checkpoints.
std::filesystem::path checkpoints_folder(const std::filesystem::path& run);

/// The step to continue from, by train.resume: auto: the newest checkpoint that verifies, nothing when there is none; a number:
/// that one (UserError listing the steps there are); never (or 0): nothing, and a UserError when the run already has checkpoints.
std::optional<int64_t> resume_step(const std::string& resume, const std::filesystem::path& run);

}  // namespace scalewright
