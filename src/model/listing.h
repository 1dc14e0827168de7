// Lists in error messages: the count, and no more names than a reader wants.
#pragma once
#include <string>
#include <vector>

namespace scalewright {

/// "  TITLE (N):\n    item\n ..." with the first 20 items, or nothing when there are none.
std::string listing(const std::string& title, const std::vector<std::string>& items);

}  // namespace scalewright
