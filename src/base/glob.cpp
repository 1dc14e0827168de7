#include "base/glob.h"

#include <cstddef>

namespace scalewright {

bool glob_match(std::string_view pattern, std::string_view name) {
  // Greedy with one point of return: only the last star ever needs to take one more character.
  std::size_t p = 0, n = 0;
  std::size_t after_star = std::string_view::npos, star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_name = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace scalewright
