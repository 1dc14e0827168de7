#include "quant/format.h"

#include "base/error.h"
#include "base/near.h"

namespace scalewright {
namespace {

constexpr TensorFormat kE2M1Block{Grid::kE2M1, ScaleLayout::kTwoLevelBlock, 16, 6.0};
constexpr TensorFormat kInt4Group{Grid::kInt4, ScaleLayout::kGroup, 128, 7.0};
constexpr TensorFormat kInt8Channel{Grid::kInt8, ScaleLayout::kChannel, 0, 127.0};
constexpr TensorFormat kE4M3Channel{Grid::kE4M3, ScaleLayout::kChannel, 0, 448.0};

constexpr Format kFormats[] = {
    {"nvfp4", kE2M1Block, kE2M1Block, "nvfp4-pack-quantized"},
    {"nvfp4a16", kE2M1Block, std::nullopt, "nvfp4-pack-quantized"},
    {"w4a16", kInt4Group, std::nullopt, "pack-quantized"},
    {"w8a8", kInt8Channel, kInt8Channel, "int-quantized"},
    {"fp8", kE4M3Channel, kE4M3Channel, "float-quantized"},
    {"w4afp8", kInt4Group, kE4M3Channel, "pack-quantized"},  // forced: the library would infer "int-quantized", which loaders refuse
};

/// "unknown KIND 'WORD'; allowed: a, b (did you mean 'a'?)".
std::string unknown_word(const std::string& kind, std::string_view word, const std::vector<std::string>& allowed) {
  const auto near = nearest(word, allowed);
  return fmt::format("unknown {} '{}'; allowed: {}{}", kind, word, fmt::join(allowed, ", "),
                     near ? fmt::format("\nhint: did you mean '{}'?", *near) : std::string());
}

}  // namespace

std::span<const Format> all_formats() { return kFormats; }

const Format& find_format(std::string_view name) {
  std::vector<std::string> names;
  for (const Format& format : kFormats) {
    if (format.name == name) return format;
    names.emplace_back(format.name);
  }
  throw UserError(unknown_word("format", name, names));
}

Numerics find_numerics(std::string_view name) {
  if (name == "deploy") return Numerics::kDeploy;
  if (name == "mcore_qad") return Numerics::kMcoreQad;
  throw UserError(unknown_word("numerics", name, {"deploy", "mcore_qad"}));
}

std::string_view numerics_name(Numerics numerics) { return numerics == Numerics::kDeploy ? "deploy" : "mcore_qad"; }

}  // namespace scalewright
