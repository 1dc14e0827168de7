#include "train/init_scales.h"

#include <fstream>

#include "base/error.h"
#include "store/checkpoint.h"
#include "store/safetensors.h"
#include "train/resume.h"

namespace scalewright {

namespace {

namespace fs = std::filesystem;

/// torch.save writes a zip ("PK") or, formerly, a pickle (0x80, protocol 2..5).
bool is_pickle(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".pt" || extension == ".pth" || extension == ".pkl" || extension == ".bin" || extension == ".ckpt") return true;
  std::ifstream file(path, std::ios::binary);
  char head[9] = {};
  file.read(head, sizeof head);
  const bool zip = std::string_view(head, 4) == std::string_view("PK\x03\x04", 4);
  const bool plain = static_cast<unsigned char>(head[0]) == 0x80 && head[1] >= 2 && head[1] <= 5 && head[8] != '{';  // '{': a safetensors header
  return zip || plain;
}

std::map<std::string, at::Tensor> quantizers_only(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> scales;
  for (const auto& [name, tensor] : tensors)
    if (!name.starts_with("adam.")) scales[name] = tensor;
  return scales;
}

}  // namespace

std::map<std::string, at::Tensor> read_scales(const fs::path& path) {
  if (!fs::exists(path)) throw DataError(fmt::format("{}: no such file or folder\nhint: a run, a checkpoint (step_N) or a safetensors file of scales is expected", path.string()));
  if (!fs::is_directory(path)) {
    if (is_pickle(path))
      throw DataError(fmt::format("{}: a pickle is not read: unpickling runs whatever code its author put into it\n"
                                  "hint: save the tensors as safetensors, or start from a run of ours",
                                  path.string()));
    return quantizers_only(load_tensors(path));
  }
  if (fs::exists(path / "manifest.json")) return quantizers_only(load_checkpoint(path).tensors);
  const auto step = latest_checkpoint(checkpoints_folder(path));
  if (!step)
    throw DataError(fmt::format("{}: neither a run with checkpoints nor a checkpoint\nhint: expected {} or manifest.json in it", path.string(),
                                checkpoints_folder(path).string()));
  return quantizers_only(load_checkpoint(checkpoint_path(checkpoints_folder(path), *step)).tensors);
}

}  // namespace scalewright
