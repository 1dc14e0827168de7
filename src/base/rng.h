// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value is a function of (seed, stream, index) only, so it does not depend on the order of draws, ranks or threads.
#pragma once
#include <array>
#include <cstdint>

namespace scalewright {

/// Four 32-bit words of the block `counter` under `key`.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// The random numbers of one (seed, stream). A value type without state: `at(i)` is always the same.
class Philox {
 public:
  Philox(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}
  std::uint64_t bits(std::uint64_t index) const;                        // uniform 64 bits
  double uniform(std::uint64_t index) const;                            // [0, 1), 53 bits
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;  // [0, bound), bound > 0
  double normal(std::uint64_t index) const;                             // standard normal (Box-Muller)

 private:
  std::uint64_t seed_, stream_;
};

}  // namespace scalewright
