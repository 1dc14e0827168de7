#include "config/problem.h"

#include "base/error.h"

namespace scalewright {

std::string SourcePlace::text() const { return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source; }

void Problems::add(const SourcePlace& place, const std::string& message) { list_.push_back({place, message}); }

void Problems::raise() const {
  if (list_.empty()) return;
  auto sorted = list_;
  // Overrides (line 0) are applied after the file, so they are told after it.
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    if ((a.place.line == 0) != (b.place.line == 0)) return b.place.line == 0;
    return std::pair(a.place.line, a.place.column) < std::pair(b.place.line, b.place.column);
  });
  std::string text;
  for (const auto& problem : sorted) {
    if (!text.empty()) text += '\n';
    text += problem.place.source.empty() ? problem.message : problem.place.text() + ": " + problem.message;
  }
  throw UserError(text);
}

}  // namespace scalewright
