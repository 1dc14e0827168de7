// An exported folder opened again: what is quantized in it, and the weights that its loaders multiply by.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "export/stored_module.h"
#include "model/decoder.h"

namespace scalewright {

/// A compressed-tensors folder of ours. Opening reads config.json and the headers of the weight files; weights are read when asked for.
class QuantizedFolder {
 public:
  /// `config`: of this folder, or of the model that it was made from. Throws DataError when the folder cannot be read, its
  /// quantization_config is not one of ours, or a fused group is quantized in part.
  QuantizedFolder(const std::filesystem::path& folder, const ModelConfig& config);

  const std::filesystem::path& path() const { return path_; }
  const QuantPlan& plan() const { return plan_; }
  const Format& format() const { return *format_; }
  const std::vector<ProjectionSpec>& projections() const { return specs_; }
  const ExportedTensors& tensors() const { return tensors_; }

  /// code*(s*fl(1/G)) or code*s in float32, [E,N,K]. Throws DataError listing what is missing or misshapen.
  at::Tensor weight(const ProjectionSpec& spec, bool vllm_w4afp8 = false) const;
  /// The static input global as the file's divisor G, or nothing when the format has none.
  std::optional<float> input_divisor(const ProjectionSpec& spec) const;

  /// Gives the decoder of the original model this folder's quantizers: stored weights and input globals. Embeddings, norms, routers
  /// and the head stay the decoder's.
  void install(Decoder& decoder, bool vllm_w4afp8 = false) const;

  /// What a loader would stumble over, from the folder alone: missing, misshapen or left-over tensors, bad scales, globals that differ within
  /// a fused group or between experts, linears that are neither quantized nor ignored. At most `limit`.
  std::vector<std::string> faults(std::size_t limit = 100) const;

 private:
  std::vector<StoredModule> modules(const ProjectionSpec& spec) const;
  void check_globals(const ProjectionSpec& spec, const std::vector<StoredModule>& modules, std::vector<std::string>& faults) const;
  void check_leftovers(const std::set<std::string>& used, std::vector<std::string>& faults) const;

  std::filesystem::path path_;
  ExportedTensors tensors_;
  std::vector<ProjectionSpec> specs_;
  std::set<std::string> ignored_;
  const Format* format_ = nullptr;
  QuantPlan plan_;
};

}  // namespace scalewright
