// Named tensors brought together on one rank.
#pragma once
#include <map>
#include <string>

#include "comm/group.h"

namespace scalewright {

/// The union of all ranks' maps on the group's first rank; elsewhere the own map. All ranks must call it.
std::map<std::string, at::Tensor> gather_on_first(const Group& group, std::map<std::string, at::Tensor> tensors);

}  // namespace scalewright
