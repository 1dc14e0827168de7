#include "model/listing.h"

namespace scalewright {

std::string listing(const std::string& title, const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 20;
  if (items.empty()) return "";
  std::string text = fmt::format("  {} ({}):\n", title, items.size());
  for (std::size_t i = 0; i < std::min(items.size(), kShown); ++i) text += fmt::format("    {}\n", items[i]);
  if (items.size() > kShown) text += fmt::format("    and {} more\n", items.size() - kShown);
  return text;
}

}  // namespace scalewright
