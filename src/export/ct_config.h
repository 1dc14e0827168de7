// The quantization_config of a compressed-tensors folder.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "quant/format.h"

namespace scalewright {

/// One format for every Linear that is not in `ignore`; the format stands in the group and on top, since loaders look in either.
Json compressed_tensors_config(const Format& format, std::vector<std::string> ignore);

}  // namespace scalewright
