#include "export/ct_config.h"

namespace scalewright {
namespace {

// The library version whose schema these objects follow.
constexpr const char* kSchemaVersion = "0.20.1";

int bits(Grid grid) { return grid == Grid::kE2M1 || grid == Grid::kInt4 ? 4 : 8; }
const char* kind(Grid grid) { return grid == Grid::kE2M1 || grid == Grid::kE4M3 ? "float" : "int"; }

Json weight_arguments(const TensorFormat& format) {
  Json arguments = {{"dynamic", false}, {"num_bits", bits(format.grid)}, {"symmetric", true}, {"type", kind(format.grid)}};
  arguments["group_size"] = format.group > 0 ? Json(format.group) : Json(nullptr);
  switch (format.layout) {
    case ScaleLayout::kTwoLevelBlock:
      arguments["strategy"] = "tensor_group";
      arguments["scale_dtype"] = "torch.float8_e4m3fn";
      break;
    case ScaleLayout::kGroup: arguments["strategy"] = "group"; break;
    case ScaleLayout::kChannel: arguments["strategy"] = "channel"; break;
  }
  return arguments;
}

Json input_arguments(const TensorFormat& format) {
  Json arguments = weight_arguments(format);
  if (format.layout == ScaleLayout::kTwoLevelBlock) {
    arguments["dynamic"] = "local";          // block scales at run time, the global stored
    arguments["observer"] = "static_minmax";
  } else {
    arguments["dynamic"] = true;
    arguments["strategy"] = "token";
  }
  return arguments;
}

}  // namespace

Json compressed_tensors_config(const Format& format, std::vector<std::string> ignore) {
  std::sort(ignore.begin(), ignore.end());
  const std::string name(format.ct_name);
  const Json group = {{"format", name},
                      {"input_activations", format.activation ? input_arguments(*format.activation) : Json(nullptr)},
                      {"output_activations", nullptr},
                      {"targets", {"Linear"}},
                      {"weights", weight_arguments(format.weight)}};
  return {{"config_groups", {{"group_0", group}}},
          {"format", name},
          {"global_compression_ratio", nullptr},
          {"ignore", ignore},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"},
          {"sparsity_config", Json::object()},
          {"transform_config", Json::object()},
          {"version", kSchemaVersion}};
}

}  // namespace scalewright
