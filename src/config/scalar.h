// What the text of a YAML scalar means. Stricter than YAML 1.1, where 010 is 8, 1:30 is 90, `no` is false and 0x10 is
// 16: whatever two readers could take for two values is refused with the way to write it.
#pragma once
#include <optional>
#include <string>

#include "config/yaml_reader.h"

namespace scalewright {

/// The value, or nothing and `why` says what is wrong ("'010' is 8 to some readers and 10 to others; write 10").
std::optional<bool> scalar_bool(const YamlNode& node, std::string& why);
/// Decimal digits with a sign; also 1e5 when that is a whole number.
std::optional<int64_t> scalar_int(const YamlNode& node, std::string& why);
/// Finite decimal numbers.
std::optional<double> scalar_double(const YamlNode& node, std::string& why);
/// Any scalar, as written.
std::optional<std::string> scalar_string(const YamlNode& node, std::string& why);

/// A number as YAML text that reads back to the same bits and is seen to be no integer ("1.0", "2e-04").
std::string number_text(double value);
/// A string as YAML text: plain where nobody could take it for something else, else quoted.
std::string string_text(const std::string& value);

}  // namespace scalewright
