// Prompts as rows of tokens, to calibrate on when no other data is given.
#pragma once
#include <memory>
#include <vector>

#include "text/dataset.h"

namespace scalewright {

/// Row i is one document, prompt i; no token is a target.
std::unique_ptr<RowSource> prompt_rows(std::vector<std::vector<int32_t>> prompts);

}  // namespace scalewright
