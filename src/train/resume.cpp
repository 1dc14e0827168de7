#include "train/resume.h"

#include <fmt/ranges.h>

#include <charconv>

#include "base/error.h"
#include "store/checkpoint.h"

namespace scalewright {

std::filesystem::path checkpoints_folder(const std::filesystem::path& run) { return run / "checkpoints"; }

std::optional<int64_t> resume_step(const std::string& resume, const std::filesystem::path& run) {
  const std::filesystem::path folder = checkpoints_folder(run);
  if (resume == "auto") return latest_checkpoint(folder);
  const std::vector<int64_t> present = list_checkpoints(folder);
  if (resume == "never" || resume == "0") {
    if (present.empty()) return std::nullopt;
    throw UserError(fmt::format("{} holds checkpoints of steps {}, and train.resume is {}\nhint: move that folder aside to start anew, or use "
                                "train.resume: auto to continue",
                                folder.string(), fmt::join(present, ", "), resume));
  }
  int64_t step = -1;
  const auto [end, code] = std::from_chars(resume.data(), resume.data() + resume.size(), step);
  if (code != std::errc() || end != resume.data() + resume.size())
    throw UserError(fmt::format("train.resume is '{}', expected auto, never or a step number", resume));
  if (std::find(present.begin(), present.end(), step) == present.end())
    throw UserError(fmt::format("train.resume is {}, but {} holds {}\nhint: train.resume: auto continues from the newest", step, folder.string(),
                                present.empty() ? "no checkpoint" : fmt::format("steps {}", fmt::join(present, ", "))));
  return step;
}

}  // namespace scalewright
