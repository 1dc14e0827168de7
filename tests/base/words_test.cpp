// near and glob: comparing words.
#include <gtest/gtest.h>

#include "base/glob.h"
#include "base/near.h"
#include "base/rng.h"

namespace scalewright {
namespace {

TEST(Near, KnownDistances) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);   // optimal string alignment; full Damerau would say 2
  EXPECT_EQ(edit_distance("lr", "LR"), 2);
}

std::string random_word(const Philox& random, int which) {
  std::string word;
  const auto length = random.below(which * 100, 7);
  for (std::uint64_t i = 0; i < length; ++i) word += static_cast<char>('a' + random.below(which * 100 + 1 + i, 3));
  return word;
}

TEST(Near, IsSymmetricAndBounded) {
  const Philox random(1, 1);
  for (int i = 0; i < 500; ++i) {
    const std::string a = random_word(random, 2 * i), b = random_word(random, 2 * i + 1);
    const int distance = edit_distance(a, b);
    EXPECT_EQ(distance, edit_distance(b, a));
    EXPECT_EQ(distance == 0, a == b);
    EXPECT_LE(distance, static_cast<int>(std::max(a.size(), b.size())));
    EXPECT_GE(distance, std::abs(static_cast<int>(a.size()) - static_cast<int>(b.size())));
  }
}

TEST(Near, SuggestsOnlyTypos) {
  const std::vector<std::string> keys = {"seq_len", "steps", "micro_batch", "lr"};
  EXPECT_EQ(nearest("seqlen", keys), "seq_len");
  EXPECT_EQ(nearest("step", keys), "steps");
  EXPECT_EQ(nearest("micro_bathc", keys), "micro_batch");
  EXPECT_EQ(nearest("rl", keys), "lr");
  EXPECT_EQ(nearest("temperature", keys), std::nullopt);
  EXPECT_EQ(nearest("steps", {}), std::nullopt);
}

TEST(Glob, KnownMatches) {
  EXPECT_TRUE(glob_match("model.layers.*.mlp.gate", "model.layers.0.mlp.gate"));
  EXPECT_TRUE(glob_match("*.experts.*", "model.layers.12.mlp.experts.3.up_proj"));
  EXPECT_FALSE(glob_match("*.experts.*", "model.layers.12.mlp.experts"));
  EXPECT_TRUE(glob_match("lm_head", "lm_head"));
  EXPECT_FALSE(glob_match("lm_head", "lm_head.weight"));
  EXPECT_TRUE(glob_match("layers.?.x", "layers.1.x"));
  EXPECT_FALSE(glob_match("layers.?.x", "layers.12.x"));
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("***", ""));
  EXPECT_FALSE(glob_match("?", ""));
  EXPECT_TRUE(glob_match("a[b]", "a[b]"));   // no character classes
}

/// The definition itself, exponential but plainly right.
bool slow_match(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') return slow_match(pattern.substr(1), name) || (!name.empty() && slow_match(pattern, name.substr(1)));
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) && slow_match(pattern.substr(1), name.substr(1));
}

TEST(Glob, AgreesWithItsDefinition) {
  const Philox random(2, 2);
  int matches = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = random_word(random, 2 * i);
    std::string pattern = random_word(random, 2 * i + 1);
    for (char& c : pattern) c = c == 'c' ? "*?"[random.below(1'000'000 + i, 2)] : c;
    const bool expected = slow_match(pattern, name);
    matches += expected;
    EXPECT_EQ(glob_match(pattern, name), expected) << pattern << " against " << name;
  }
  EXPECT_GT(matches, 200);   // the generator makes matches, not only misses
}

TEST(Glob, ManyStarsAreFast) {
  std::string pattern, name(5000, 'a');
  for (int i = 0; i < 500; ++i) pattern += "*a";
  EXPECT_FALSE(glob_match(pattern + "b", name));   // exponential for a backtracking matcher
}

}  // namespace
}  // namespace scalewright
