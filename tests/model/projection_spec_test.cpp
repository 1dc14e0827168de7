#include "model/projection_spec.h"

#include "tiny_model.h"

namespace scalewright {
namespace {

std::vector<ProjectionSpec> specs_of(const std::string& reference) { return projections(read_model_config(reference_folder(reference))); }

std::vector<std::string> names_of(const std::vector<ProjectionSpec>& specs) {
  std::vector<std::string> names;
  for (const ProjectionSpec& spec : specs) names.push_back(spec.name);
  return names;
}

const ProjectionSpec& named(const std::vector<ProjectionSpec>& specs, const std::string& name) {
  const auto found = std::find_if(specs.begin(), specs.end(), [&](const ProjectionSpec& spec) { return spec.name == name; });
  if (found == specs.end()) throw std::runtime_error("no " + name);
  return *found;
}

TEST(ProjectionSpec, NamesInLayerOrder) {
  EXPECT_EQ(names_of(specs_of("qwen3_moe_mixed")),
            (std::vector<std::string>{"layers.0.qkv", "layers.0.o", "layers.0.gate_up", "layers.0.down", "layers.1.qkv", "layers.1.o",
                                      "layers.1.gate_up.experts", "layers.1.down.experts"}));
  EXPECT_EQ(names_of(specs_of("hy_v3")),
            (std::vector<std::string>{"layers.0.qkv", "layers.0.o", "layers.0.gate_up", "layers.0.down", "layers.1.qkv", "layers.1.o",
                                      "layers.1.gate_up.experts", "layers.1.down.experts", "layers.1.gate_up.shared", "layers.1.down.shared"}));
}

/// The pieces of a spec cover the rows of every expert once, in order.
TEST(ProjectionSpec, PiecesTileTheStackedWeight) {
  for (const char* reference : {"qwen3_moe", "qwen3_moe_mixed", "hy_v3", "qwen3", "qwen2", "llama"}) {
    for (const ProjectionSpec& spec : specs_of(reference)) {
      SCOPED_TRACE(fmt::format("{} {}", reference, spec.name));
      int64_t next = 0;
      for (const Piece& piece : spec.pieces) {
        EXPECT_EQ(piece.expert * spec.rows + piece.row_begin, next);
        next = piece.expert * spec.rows + piece.row_end;
      }
      EXPECT_EQ(next, spec.experts * spec.rows);
    }
  }
}

TEST(ProjectionSpec, ModulesAreHubNames) {
  const auto specs = specs_of("hy_v3");
  const ProjectionSpec& qkv = named(specs, "layers.1.qkv");
  ASSERT_EQ(qkv.pieces.size(), 3u);
  EXPECT_EQ(qkv.pieces[2].module, "model.layers.1.self_attn.v_proj");
  EXPECT_EQ(qkv.rows, 256);
  EXPECT_EQ(qkv.pieces[1].row_begin, 128);
  const ProjectionSpec& experts = named(specs, "layers.1.gate_up.experts");
  EXPECT_TRUE(experts.routed());
  EXPECT_EQ(experts.experts, 8);
  EXPECT_EQ(experts.pieces[7].module, "model.layers.1.mlp.experts.3.up_proj");
  EXPECT_EQ(experts.pieces[7].expert, 3);
  EXPECT_EQ(experts.input_name, "layers.1.act1.experts");
  EXPECT_EQ(named(specs, "layers.1.down.experts").input_name, "layers.1.act2.experts");
  EXPECT_EQ(named(specs, "layers.1.down.shared").pieces[0].module, "model.layers.1.mlp.shared_mlp.down_proj");
  EXPECT_EQ(named(specs, "layers.1.down.shared").input_name, "layers.1.down.shared.input");
}

TEST(ProjectionSpec, BiasesFollowTheModel) {
  const auto specs = specs_of("qwen2");
  EXPECT_TRUE(named(specs, "layers.0.qkv").has_bias);
  EXPECT_FALSE(named(specs, "layers.0.o").has_bias);
  EXPECT_FALSE(named(specs, "layers.0.gate_up").has_bias);
}

}  // namespace
}  // namespace scalewright
