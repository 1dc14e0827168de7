// Shell-like patterns over dotted names.
#pragma once
#include <string_view>

namespace scalewright {

/// Whether `name` matches `pattern` as a whole; `*` matches any run of characters (dots too), `?` one character.
bool glob_match(std::string_view pattern, std::string_view name);

}  // namespace scalewright
