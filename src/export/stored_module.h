// One module of an exported folder: which tensors hold it, and what a loader makes of them.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "export/export.h"
#include "quant/weight_quantizer.h"
#include "store/safetensors.h"

namespace scalewright {

/// The tensors of a module [rows, columns] in `format`; `stored`: dtype of group and channel scales.
std::vector<TensorSpec> module_tensors(const std::string& module, const Format& format, int64_t rows, int64_t columns, at::ScalarType stored);

/// The weights of a Hugging Face folder by tensor name. Throws DataError (missing shard, tensor in two shards, bad index).
class ExportedTensors {
 public:
  explicit ExportedTensors(const std::filesystem::path& folder);
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return files_.count(name) > 0; }
  at::Tensor tensor(const std::string& name) const;

 private:
  std::map<std::string, std::string> files_;   // tensor -> shard
  std::map<std::string, std::shared_ptr<SafetensorsFile>> open_;
};

struct StoredModule {
  QuantizedWeight weight;     // [1,R,K]
  at::Tensor input_divisor;   // float32 [1], or undefined where inputs have no static global
};

/// Reads a module. Missing and misshapen tensors, and scales that are zero, negative or not finite, are appended to `faults`; the
/// result is empty when the weight cannot be made. `stored` empty: any float dtype. Every tensor that belongs to the module joins `used`.
std::optional<StoredModule> read_module(const ExportedTensors& tensors, const std::string& module, const Format& format, int64_t rows, int64_t columns,
                                        std::optional<at::ScalarType> stored, std::vector<std::string>& faults, std::set<std::string>& used);

}  // namespace scalewright
