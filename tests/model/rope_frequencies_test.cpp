// Known answers of transformers (in float64), made by tests/data/rope/make_rope.py.
#include "tiny_model.h"

namespace scalewright {
namespace {

TEST(RopeFrequencies, EqualsTransformers) {
  const Json cases = read_json(std::filesystem::path(SCALEWRIGHT_TEST_DATA) / "rope" / "rope.json");
  ASSERT_GE(cases.size(), 13u);
  for (const auto& item : cases.items()) {
    SCOPED_TRACE(item.key());
    const Scratch scratch;
    write_text(scratch.path() / "config.json", item.value().at("config").dump(1));
    const RopeFrequencies rope = rope_frequencies(read_model_config(scratch.path()));
    const auto want = item.value().at("inverse").get<std::vector<double>>();
    ASSERT_EQ(rope.inverse.scalar_type(), at::kDouble);
    ASSERT_EQ(rope.inverse.sizes(), at::IntArrayRef({static_cast<int64_t>(want.size())}));
    // A few ulp: pow may differ in its last bit, and yarn divides in another order.
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(rope.inverse[i].item<double>() / want[i], 1.0, 2e-15) << i;
    EXPECT_NEAR(rope.attention_scaling, item.value().at("attention_scaling").get<double>(), 1e-15);
  }
}

}  // namespace
}  // namespace scalewright
