// Re-reads an exported folder and compares it with the trained student.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "export/export.h"
#include "export/stored_module.h"

namespace scalewright {

struct VerifyReport {
  int64_t modules = 0;                // quantized modules compared
  int64_t values = 0;                 // dequantized weights compared
  std::vector<std::string> faults;    // what differs, at most a hundred; empty: the export is what was trained
  bool ok() const { return faults.empty(); }
};
OrderedJson to_json(const VerifyReport& report);

/// Checks, from the files alone: that every tensor of the plan is there and none besides; that scales are finite and positive; that the
/// configuration names the format and ignores exactly what is not quantized; that dequantized weights (code*(s*fl(1/G)) or code*s
/// in float32) equal the student's fake-quantized weights bit for bit; that input globals are the trained ones and all other tensors the
/// model's. Differences are reported, not thrown; a folder that cannot be read is a DataError.
VerifyReport verify_export(const ModelConfig& config, const ModelWeights& weights, const QuantPlan& plan, const QuantizerState& state,
                           const std::filesystem::path& folder);

}  // namespace scalewright
