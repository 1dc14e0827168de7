// Exact sums over ranks: the same bits however the terms are spread.
#pragma once
#include <vector>

#include "base/exact_sum.h"
#include "comm/group.h"

namespace scalewright {

/// Element by element, the sum over all ranks of `group`, which must all call it with equally many sums.
std::vector<ExactSum> add_up(const Group& group, const std::vector<ExactSum>& own);

}  // namespace scalewright
