#include "export/export.h"

#include <charconv>
#include <set>

#include "base/error.h"
#include "base/failpoint.h"
#include "export/ct_config.h"
#include "export/packing.h"
#include "export/stored_module.h"
#include "quant/activation_quantizer.h"
#include "quant/weight_quantizer.h"
#include "store/files.h"
#include "store/safetensors.h"

namespace scalewright {
namespace {

// What is copied beside the weights when the model has it. No code: a folder's *.py files stay behind.
constexpr std::array kCopiedFiles = {"tokenizer.json",  "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                     "vocab.json",      "merges.txt",            "tokenizer.model",         "chat_template.jinja",
                                     "chat_template.json", "generation_config.json"};

const at::Tensor& find(const QuantizerState& state, const std::string& name) {
  const auto found = state.find(name);
  if (found == state.end()) throw DataError(fmt::format("export: the trained scales lack '{}'\nhint: they must belong to this model and format", name));
  return found->second;
}

const Format* format_of(const ProjectionSpec& spec, const QuantPlan& plan) {
  const auto found = plan.formats.find(spec.name);
  return found == plan.formats.end() ? nullptr : found->second;
}

// float64 only where the scales were trained in float64, so that the products are the trained ones.
Compute compute_of(const at::Tensor& alpha) { return Compute{alpha.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, at::kCPU, false}; }

QuantizedWeight quantize(const ProjectionSpec& spec, const Format& format, const at::Tensor& weight, const QuantPlan& plan, const QuantizerState& state,
                         at::ScalarType stored) {
  const at::Tensor& alpha = find(state, "alpha/" + spec.name);
  WeightQuantizer quantizer(spec.name, format.weight, plan.numerics, weight, compute_of(alpha), stored);
  if (alpha.sizes() != quantizer.alpha().sizes())
    throw DataError(fmt::format("export: 'alpha/{}' has shape {}, expected {}", spec.name, fmt::join(alpha.sizes(), "x"), fmt::join(quantizer.alpha().sizes(), "x")));
  quantizer.alpha().copy_(alpha);
  quantizer.set_vllm_w4afp8_rounding(plan.vllm_w4afp8_rounding && format.name == "w4afp8");
  return quantizer.quantize(weight);
}

// The static input global as the file's divisor [1], or undefined when the format has none.
at::Tensor input_divisor(const ProjectionSpec& spec, const Format& format, const QuantPlan& plan, const QuantizerState& state) {
  if (!format.activation) return {};
  ActivationQuantizer input(spec.input_name, *format.activation, plan.numerics, spec.routed() ? spec.experts : 0, Compute{});
  if (!input.has_global()) return {};
  const at::Tensor& alpha = find(state, "alpha/" + spec.input_name);
  ActivationQuantizer exact(spec.input_name, *format.activation, plan.numerics, spec.routed() ? spec.experts : 0, compute_of(alpha));
  exact.alpha().copy_(alpha);
  exact.set_ref(find(state, "ref/" + spec.input_name));
  return exact.exported_divisor().reshape({1});
}

// Rows of one piece, as the format's tensors.
void add_piece(std::map<std::string, at::Tensor>& tensors, const Piece& piece, const Format& format, const QuantizedWeight& q, const at::Tensor& divisor) {
  const int64_t rows = piece.row_end - piece.row_begin;
  const at::Tensor codes = q.codes[piece.expert].narrow(0, piece.row_begin, rows);
  const std::string prefix = piece.module + ".";
  tensors[prefix + "weight_scale"] = q.scale[piece.expert].narrow(0, piece.row_begin, rows).contiguous();
  switch (format.weight.grid) {
    case Grid::kE2M1:
      tensors[prefix + "weight_packed"] = pack_nibbles(codes);
      tensors[prefix + "weight_global_scale"] = q.global_scale.narrow(0, piece.expert, 1).clone();
      break;
    case Grid::kInt4:
      tensors[prefix + "weight_packed"] = pack_int32(codes);
      tensors[prefix + "weight_shape"] = at::tensor(std::vector<int64_t>{rows, codes.size(1)}, at::kLong);
      break;
    case Grid::kInt8: tensors[prefix + "weight"] = codes.contiguous(); break;
    case Grid::kE4M3: tensors[prefix + "weight"] = codes.contiguous().view(at::kFloat8_e4m3fn); break;
  }
  if (divisor.defined()) tensors[prefix + "input_global_scale"] = divisor;
}

// One tensor to come: known before anything is computed.
struct Planned {
  TensorSpec spec;
  const ProjectionSpec* projection = nullptr;   // nullptr: copied from the model
  int64_t bytes() const {
    int64_t n = static_cast<int64_t>(c10::elementSize(spec.dtype));
    for (int64_t d : spec.shape) n *= d;
    return n;
  }
};

void plan_piece(std::vector<Planned>& planned, const ProjectionSpec& spec, const Piece& piece, const Format* format, at::ScalarType stored) {
  const int64_t rows = piece.row_end - piece.row_begin;
  if (!format) {
    planned.push_back({{piece.module + ".weight", stored, {rows, spec.columns}}, &spec});
    return;
  }
  for (TensorSpec& tensor : module_tensors(piece.module, *format, rows, spec.columns, stored)) planned.push_back({std::move(tensor), &spec});
}

std::vector<Planned> plan_tensors(const std::vector<ProjectionSpec>& specs, const ModelWeights& weights, const QuantPlan& plan) {
  std::vector<Planned> planned;
  for (const ModelWeights::Unquantized& u : weights.unquantized()) planned.push_back({{u.name, u.dtype, u.shape}, nullptr});
  for (const ProjectionSpec& spec : specs)
    for (const Piece& piece : spec.pieces) plan_piece(planned, spec, piece, format_of(spec, plan), weights.dtype());
  return planned;
}

std::vector<std::vector<Planned>> split_shards(const std::vector<Planned>& planned, int64_t limit) {
  std::vector<std::vector<Planned>> shards(1);
  int64_t bytes = 0;
  for (const Planned& tensor : planned) {
    if (bytes > 0 && bytes + tensor.bytes() > limit) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(tensor);
  }
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

// The one format of the plan; several formats in one export need groups by name (mixed precision).
const Format& single_format(const QuantPlan& plan) {
  std::set<const Format*> formats;
  for (const auto& [name, format] : plan.formats) formats.insert(format);
  if (formats.size() != 1) throw UserError("export: mixed formats in one checkpoint are not written yet");
  return **formats.begin();
}

std::vector<std::string> ignored_modules(const std::vector<ProjectionSpec>& specs, const ModelWeights& weights, const QuantPlan& plan) {
  std::vector<std::string> ignore = weights.unquantized_linear_modules();
  for (const ProjectionSpec& spec : specs)
    if (!format_of(spec, plan))
      for (const Piece& piece : spec.pieces) ignore.push_back(piece.module);
  return ignore;
}

void write_small_files(const ModelConfig& config, const ModelWeights& weights, const QuantPlan& plan, const std::vector<ProjectionSpec>& specs,
                       const fs::path& folder) {
  Json document = config.raw;
  document["quantization_config"] = compressed_tensors_config(single_format(plan), ignored_modules(specs, weights, plan));
  write_file_atomic(folder / "config.json", document.dump(2) + "\n");
  for (const char* name : kCopiedFiles)
    if (fs::exists(weights.folder() / name)) write_file_atomic(folder / name, read_file(weights.folder() / name));
}

}  // namespace

int64_t parse_size(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::map<std::string, double> units = {{"", 1}, {"B", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  const auto factor = units.find(unit);
  if (error != std::errc() || factor == units.end() || !(number * factor->second >= 1) || number * factor->second > 1e15)
    throw UserError(fmt::format("'{}' is not a size\nhint: a number with KB, MB, GB or TB, such as 5GB", text));
  return static_cast<int64_t>(number * factor->second);
}

void check_export_target(const fs::path& out, const fs::path& model) {
  if (out.empty()) throw UserError("--out is empty\nhint: the folder to write");
  if (!fs::exists(out)) return;
  const auto refuse = [&](const std::string& what) {
    throw UserError(fmt::format("{}: exists and is {}; it is left as it is\nhint: name a new folder", out.string(), what));
  };
  if (!fs::is_directory(out)) refuse("not a folder");
  if (fs::equivalent(out, model)) refuse("the model itself");
  if (fs::is_empty(out)) return;
  bool plain = true;
  for (const auto& entry : fs::directory_iterator(out)) plain = plain && entry.symlink_status().type() == fs::file_type::regular;
  const fs::path config = out / "config.json";
  if (!plain || !fs::exists(config)) refuse("something else than an earlier export");
  const Json json = read_json(config);
  if (!json.is_object() || !json.contains("quantization_config")) refuse("not an earlier export (its config.json has no quantization_config)");
}

std::map<std::string, at::Tensor> exported_tensors(const ProjectionSpec& spec, const ModelWeights& weights, const QuantPlan& plan,
                                                   const QuantizerState& state) {
  at::NoGradGuard no_grad;
  const at::Tensor weight = weights.stacked(spec);
  std::map<std::string, at::Tensor> tensors;
  const Format* format = format_of(spec, plan);
  if (!format) {
    for (const Piece& piece : spec.pieces)
      tensors[piece.module + ".weight"] = weight[piece.expert].narrow(0, piece.row_begin, piece.row_end - piece.row_begin);
    return tensors;
  }
  const QuantizedWeight q = quantize(spec, *format, weight, plan, state, weights.dtype());
  const at::Tensor divisor = input_divisor(spec, *format, plan, state);
  for (const Piece& piece : spec.pieces) add_piece(tensors, piece, *format, q, divisor);
  return tensors;
}

ExportReport export_checkpoint(const ModelConfig& config, const ModelWeights& weights, const QuantPlan& plan, const QuantizerState& state,
                               const std::filesystem::path& out, const ExportOptions& options, Log& log) {
  if (plan.numerics != Numerics::kDeploy)
    throw UserError("export: mcore_qad numerics cannot be exported: no engine multiplies by such scales\nhint: train with quantize.numerics: deploy");
  check_export_target(out, weights.folder());
  if (fs::exists(out) && !fs::is_empty(out)) log.warning("{}: replacing an earlier export", out.string());
  const std::vector<ProjectionSpec> specs = projections(config);
  const std::vector<std::vector<Planned>> shards = split_shards(plan_tensors(specs, weights, plan), options.shard_bytes);
  ExportReport report;
  report.shards = static_cast<int64_t>(shards.size());
  for (const auto& [name, format] : plan.formats) report.quantized_modules += 1;
  publish_folder(out, [&](const fs::path& folder) {
    Json map = Json::object();
    const ProjectionSpec* current = nullptr;
    std::map<std::string, at::Tensor> ready;   // of `current` only: memory stays below two layers
    for (std::size_t i = 0; i < shards.size(); ++i) {
      std::vector<TensorSpec> file;
      for (const Planned& tensor : shards[i]) file.push_back(tensor.spec);
      SafetensorsWriter writer(folder / shard_name(i, shards.size()), file, {{"format", "pt"}});
      for (const Planned& tensor : shards[i]) {
        if (tensor.projection && tensor.projection != current) {
          ready = exported_tensors(*tensor.projection, weights, plan, state);
          current = tensor.projection;
        }
        const std::string& name = tensor.spec.name;
        writer.write(name, tensor.projection ? ready.at(name) : weights.unquantized_tensor(name));
        map[name] = shard_name(i, shards.size());
        report.bytes += tensor.bytes();
        ++report.tensors;
      }
      writer.finish();
      log.debug("export: wrote {} ({} tensors)", shard_name(i, shards.size()), file.size());
    }
    if (shards.size() > 1)
      write_file_atomic(folder / "model.safetensors.index.json", Json{{"metadata", {{"total_size", report.bytes}}}, {"weight_map", map}}.dump(2) + "\n");
    write_small_files(config, weights, plan, specs, folder);
    failpoint("export.publish");
  });
  return report;
}

}  // namespace scalewright
