#include "model/weights.h"

#include <mutex>

#include "base/error.h"
#include "base/hash.h"
#include "model/weights_copy.h"
#include "model/weights_match.h"
#include "model/weights_names.h"
#include "model/weights_shards.h"

namespace scalewright {

namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

[[noreturn]] void throw_non_finite(const FileTensor& tensor, std::size_t index, at::ScalarType dtype) {
  std::vector<int64_t> place(tensor.entry->shape.size());
  for (std::size_t d = place.size(), rest = index; d-- > 0; rest /= tensor.entry->shape[d]) place[d] = static_cast<int64_t>(rest % tensor.entry->shape[d]);
  const std::size_t width = c10::elementSize(dtype);
  const at::Tensor value = at::empty({1}, dtype);
  std::memcpy(value.data_ptr(), tensor.bytes().data() + index * width, width);
  throw DataError(fmt::format("{}: {} holds {} at [{}]; expected finite weights\nhint: the file is damaged or the model diverged in training",
                              tensor.file->path().string(), tensor.entry->name, value.item<float>(), fmt::join(place, ", ")));
}

/// A part of `file` that was copied: the whole tensor is looked through for the place of a value that is not finite.
void check_part_finite(const FileTensor& file, const at::Tensor& part) {
  if (at::isfinite(part).all().item<bool>()) return;
  if (const auto bad = copy_weights({{file.bytes(), nullptr}}, file.entry->dtype)) throw_non_finite(file, bad->index, file.entry->dtype);
}

/// Copies `from` (to `to` unless null), or throws.
void copy_finite(const std::vector<FileTensor>& from, const std::vector<std::byte*>& to, at::ScalarType dtype) {
  std::vector<WeightCopy> copies;
  for (std::size_t i = 0; i < from.size(); ++i) copies.push_back({from[i].bytes(), to[i]});
  if (const auto bad = copy_weights(copies, dtype)) throw_non_finite(from[bad->copy], bad->index, dtype);
}

}  // namespace

struct ModelWeights::State {
  std::filesystem::path folder;
  ModelConfig config;
  Shards shards;
  MatchedWeights matched;
  std::map<std::string, FileTensor> unquantized;   // by the name to write
  std::mutex hash_mutex;
  std::string hash;

  const FileTensor* find(const std::string& canonical) const {
    const std::string& name = config.tied_head && canonical == kHead ? kEmbedding : canonical;
    for (const auto* place : {&matched.others, &matched.projections, &matched.pass_through}) {
      if (const auto found = place->find(name); found != place->end()) return &found->second;
    }
    return nullptr;
  }
};

ModelWeights::ModelWeights(const std::filesystem::path& folder, const ModelConfig& config) : state_(std::make_unique<State>()) {
  state_->folder = folder;
  state_->config = config;
  state_->shards = open_shards(folder);
  state_->matched = match_weights(folder, state_->shards, config, projections(config));
  for (const auto* place : {&state_->matched.others, &state_->matched.pass_through}) {
    for (const auto& [canonical, tensor] : *place) state_->unquantized.emplace(written_name(canonical, config), tensor);
  }
}

ModelWeights::~ModelWeights() = default;
ModelWeights::ModelWeights(ModelWeights&&) noexcept = default;

const std::filesystem::path& ModelWeights::folder() const { return state_->folder; }

bool ModelWeights::has(const std::string& canonical) const { return state_->find(canonical) != nullptr; }

at::Tensor ModelWeights::tensor(const std::string& canonical) const {
  const FileTensor* found = state_->find(canonical);
  SW_CHECK(found, "{} has no {}", state_->folder.string(), canonical);
  copy_finite({*found}, {nullptr}, found->entry->dtype);
  return found->view();
}

at::ScalarType ModelWeights::dtype() const { return state_->matched.dtype; }

at::Tensor ModelWeights::stacked(const ProjectionSpec& spec) const {
  const auto& weights = state_->matched.projections;
  const at::Tensor stacked = at::empty({spec.experts, spec.rows, spec.columns}, state_->matched.dtype);
  auto* const begin = static_cast<std::byte*>(stacked.data_ptr());
  std::vector<FileTensor> from;
  std::vector<std::byte*> to;
  const auto fused = spec.routed() ? weights.find(fused_expert_name(spec)) : weights.end();
  if (fused != weights.end()) {
    from.push_back(fused->second);
    to.push_back(begin);
  } else {
    const int64_t row_bytes = spec.columns * static_cast<int64_t>(stacked.element_size());
    for (const Piece& piece : spec.pieces) {
      from.push_back(weights.at(piece.module + ".weight"));
      to.push_back(begin + (piece.expert * spec.rows + piece.row_begin) * row_bytes);
    }
  }
  copy_finite(from, to, state_->matched.dtype);
  return stacked;
}

at::Tensor ModelWeights::stacked(const ProjectionSpec& spec, const ProjectionPart& part) const {
  if (part.cut == ProjectionPart::Cut::kNone && !part.shards) return stacked(spec);
  const auto& weights = state_->matched.projections;
  const at::ScalarType dtype = state_->matched.dtype;
  at::Tensor result = at::empty({part.experts.size(), part.local_rows(), part.columns.size()}, dtype);
  const auto fused = spec.routed() ? weights.find(fused_expert_name(spec)) : weights.end();
  if (fused != weights.end()) {   // experts are cut, and lie one after the other
    const at::Tensor from = fused->second.view().narrow(0, part.experts.begin, part.experts.size());
    result.copy_(from.view(result.sizes()));
    check_part_finite(fused->second, result);
    return result;
  }
  for (const Piece& piece : spec.pieces) {
    if (piece.expert < part.experts.begin || piece.expert >= part.experts.end) continue;
    const FileTensor& file = weights.at(piece.module + ".weight");
    int64_t row = 0;
    for (const IndexRange& rows : part.rows) {
      const IndexRange common{std::max(rows.begin, piece.row_begin), std::min(rows.end, piece.row_end)};
      if (common.begin < common.end && part.columns.size() > 0) {
        at::Tensor to = result[piece.expert - part.experts.begin].narrow(0, row + common.begin - rows.begin, common.size());
        to.copy_(file.view().narrow(0, common.begin - piece.row_begin, common.size()).narrow(1, part.columns.begin, part.columns.size()));
        check_part_finite(file, to);
      }
      row += rows.size();
    }
  }
  return result;
}

at::Tensor ModelWeights::stacked_bias(const ProjectionSpec& spec, const ProjectionPart& part) const {
  const at::Tensor whole = stacked_bias(spec);
  if (!whole.defined() || part.local_rows() == spec.rows) return whole;
  std::vector<at::Tensor> parts;
  for (const IndexRange& rows : part.rows) parts.push_back(whole.narrow(1, rows.begin, rows.size()));
  return at::cat(parts, 1);
}

at::Tensor ModelWeights::stacked_bias(const ProjectionSpec& spec) const {
  if (!spec.has_bias) return {};
  std::vector<at::Tensor> parts;
  for (const Piece& piece : spec.pieces) parts.push_back(tensor(piece.module + ".bias"));
  return at::cat(parts).view({spec.experts, spec.rows});
}

std::vector<ModelWeights::Unquantized> ModelWeights::unquantized() const {
  std::vector<Unquantized> all;
  for (const auto& [name, tensor] : state_->unquantized) all.push_back({name, tensor.entry->dtype, tensor.entry->shape});
  return all;
}

at::Tensor ModelWeights::unquantized_tensor(const std::string& name) const {
  const auto found = state_->unquantized.find(name);
  SW_CHECK(found != state_->unquantized.end(), "{} is not among the unquantized tensors of {}", name, state_->folder.string());
  return found->second.view();
}

std::vector<std::string> ModelWeights::unquantized_linear_modules() const {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> modules;
  if (state_->config.tied_head) modules.emplace_back("lm_head");   // a linear to loaders, though it has no tensor of its own
  for (const auto& [name, tensor] : state_->unquantized) {
    if (tensor.entry->shape.size() != 2 || !name.ends_with(kWeight) || name.ends_with("embed_tokens.weight")) continue;
    modules.push_back(name.substr(0, name.size() - kWeight.size()));
  }
  std::sort(modules.begin(), modules.end());
  return modules;
}

std::string ModelWeights::content_hash() const {
  const std::lock_guard lock(state_->hash_mutex);
  if (!state_->hash.empty()) return state_->hash;
  Hasher hasher;
  for (const auto* place : {&state_->matched.projections, &state_->matched.others, &state_->matched.pass_through}) {
    for (const auto& [name, tensor] : *place) {
      hasher.update(fmt::format("{} {} [{}]\n", name, dtype_name(tensor.entry->dtype), fmt::join(tensor.entry->shape, ",")));
      hasher.update(tensor.bytes());
    }
  }
  return state_->hash = hasher.hex();
}

}  // namespace scalewright
