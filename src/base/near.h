// "Did you mean": the closest of the allowed words.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace scalewright {

/// Optimal string alignment distance (insert, delete, substitute, swap of neighbours), case-sensitive.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word` if near enough to be a typo of it (distance at most a third of its length, at least 1).
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace scalewright
