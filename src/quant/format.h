// The table of formats: what is stored for a weight, what is simulated for an activation. A new format is a row here and a kernel.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace scalewright {

/// The element code.
enum class Grid { kE2M1, kInt4, kInt8, kE4M3 };

/// How scales are laid over a matrix [N,K].
enum class ScaleLayout {
  kTwoLevelBlock,  // E4M3 scale per `group` elements of K times one float32 global (NVFP4)
  kGroup,          // one scale per `group` elements of K
  kChannel,        // one scale per row (weights) or per token (activations, at run time)
};

struct TensorFormat {
  Grid grid;
  ScaleLayout layout;
  int64_t group;    // elements of K per scale; 0: the whole row
  double qmax;      // 6, 7, 127, 448: the LSQ factor is 1/sqrt(N*qmax)
};

struct Format {
  std::string_view name;
  TensorFormat weight;
  std::optional<TensorFormat> activation;   // none: activations stay high precision
  std::string_view ct_name;                 // compressed-tensors "format"
};

std::span<const Format> all_formats();
/// Throws UserError listing the formats and the nearest name.
const Format& find_format(std::string_view name);

/// Whose rules: what serving engines compute (default), or AngelSlim MCoreQAD's eager rules.
enum class Numerics { kDeploy, kMcoreQad };
Numerics find_numerics(std::string_view name);   // "deploy", "mcore_qad"
std::string_view numerics_name(Numerics numerics);

}  // namespace scalewright
