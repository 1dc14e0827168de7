#include "base/rng.h"

#include <cmath>

namespace scalewright {

namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;   // golden ratio, sqrt(3) - 1
constexpr int kRounds = 10;
constexpr double kTwoPi = 6.283185307179586476925286766559;

constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
constexpr std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }
constexpr std::uint64_t join(std::uint32_t low_word, std::uint32_t high_word) {
  return std::uint64_t{high_word} << 32 | low_word;
}
/// The upper 53 bits as a number of [0, 1).
constexpr double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

std::array<std::uint32_t, 4> block(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return philox({low(index), high(index), low(stream), high(stream)}, {low(seed), high(seed)});
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1], low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

std::uint64_t Philox::bits(std::uint64_t index) const {
  const auto words = block(seed_, stream_, index);
  return join(words[0], words[1]);
}

double Philox::uniform(std::uint64_t index) const { return unit(bits(index)); }

std::uint64_t Philox::below(std::uint64_t index, std::uint64_t bound) const {
  // Multiply-shift: the bias is below bound / 2^64, which no experiment of ours can see.
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(bits(index)) * bound >> 64);
}

double Philox::normal(std::uint64_t index) const {
  const auto words = block(seed_, stream_, index);
  const double radius = std::sqrt(-2.0 * std::log1p(-unit(join(words[0], words[1]))));   // log of (0, 1]
  return radius * std::cos(kTwoPi * unit(join(words[2], words[3])));
}

}  // namespace scalewright
