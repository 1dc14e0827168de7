// Copying weights out of a mapped file, all cores at once, and finding values that are not finite on the way.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace scalewright {

/// Values in [0, n) of the first NaN or infinity; `bytes` holds bf16, f16 or f32 values (any alignment).
std::optional<std::size_t> first_non_finite(std::span<const std::byte> bytes, at::ScalarType dtype);

/// One tensor's bytes and where they go; `to` may be null (only looked through).
struct WeightCopy {
  std::span<const std::byte> from;
  std::byte* to;
};

/// The first value, by copy and then by index, that is not finite.
struct NonFinite {
  std::size_t copy, index;
};

/// Copies all and looks for values that are not finite, in parallel; reads every byte once.
std::optional<NonFinite> copy_weights(const std::vector<WeightCopy>& copies, at::ScalarType dtype);

}  // namespace scalewright
