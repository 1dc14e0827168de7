// Packing against compressed-tensors' own words.
#include "../quant/golden.h"
#include "export/packing.h"

namespace scalewright {
namespace {

using test::Golden;

TEST(Packing, Int32WordsAreCompressedTensors) {
  int64_t entries = 0;
  for (const std::string& prefix : Golden::get().prefixes("prim/pack_int32/", "pack_int32")) {
    if (prefix.ends_with("8bit")) continue;   // eight-bit codes are stored unpacked here
    const at::Tensor q = Golden::get()[prefix + "/q"], packed = Golden::get()[prefix + "/packed"];
    EXPECT_TRUE(at::equal(pack_int32(q), packed)) << prefix;
    EXPECT_TRUE(at::equal(unpack_int32(packed, q.size(1)), q)) << prefix;
    ++entries;
  }
  EXPECT_EQ(entries, 4);
}

TEST(Packing, NibblesLowFirstAndBack) {
  const at::Tensor codes = at::arange(32, at::kInt).remainder(16).to(at::kByte).reshape({2, 16});
  const at::Tensor packed = pack_nibbles(codes);
  EXPECT_EQ(packed[0][0].item<int>(), 0x10);   // elements 0 and 1
  EXPECT_EQ(packed[1][7].item<int>(), 0xfe);
  EXPECT_TRUE(at::equal(unpack_nibbles(packed), codes));
}

}  // namespace
}  // namespace scalewright
