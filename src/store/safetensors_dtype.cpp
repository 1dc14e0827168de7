// The spelling of dtypes in safetensors headers.
#include <fmt/format.h>

#include "base/error.h"
#include "store/safetensors.h"

namespace scalewright {

namespace {

struct Spelling {
  at::ScalarType dtype;
  const char* name;
};

constexpr Spelling kSpellings[] = {
    {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"}, {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},   {at::kInt, "I32"},   {at::kShort, "I16"}, {at::kChar, "I8"},
    {at::kByte, "U8"},    {at::kBool, "BOOL"}, {at::kFloat8_e4m3fn, "F8_E4M3"}, {at::kFloat8_e5m2, "F8_E5M2"},
};

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const Spelling& spelling : kSpellings) {
    if (spelling.dtype == dtype) return spelling.name;
  }
  throw DataError(fmt::format("dtype {} has no place in our safetensors files", at::toString(dtype)));
}

at::ScalarType dtype_from_name(const std::string& name, const std::string& where) {
  std::string known;
  for (const Spelling& spelling : kSpellings) {
    if (name == spelling.name) return spelling.dtype;
    known += known.empty() ? spelling.name : std::string(" ") + spelling.name;
  }
  throw DataError(fmt::format("{}: unknown dtype \"{}\"; known are {}", where, name, known));
}

}  // namespace scalewright
