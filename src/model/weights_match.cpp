#include "model/weights_match.h"

#include <cstring>

#include "base/error.h"
#include "model/listing.h"
#include "model/weights_names.h"

namespace scalewright {

namespace {

using Shape = std::vector<int64_t>;

/// What the architecture needs beside the projections' weights: canonical name -> shape.
std::map<std::string, Shape> other_shapes(const ModelConfig& config, const std::vector<ProjectionSpec>& specs) {
  std::map<std::string, Shape> shapes;
  shapes["model.embed_tokens.weight"] = {config.vocabulary, config.hidden};
  shapes["model.norm.weight"] = {config.hidden};
  if (!config.tied_head) shapes["lm_head.weight"] = {config.vocabulary, config.hidden};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    shapes[prefix + "input_layernorm.weight"] = {config.hidden};
    shapes[prefix + "post_attention_layernorm.weight"] = {config.hidden};
    if (config.qk_norm) shapes[prefix + "self_attn.q_norm.weight"] = shapes[prefix + "self_attn.k_norm.weight"] = {config.head_dim};
    if (!config.sparse[layer]) continue;
    shapes[prefix + "mlp.gate.weight"] = {config.experts, config.hidden};
    if (config.sigmoid_router) shapes[prefix + "mlp.expert_bias"] = {config.experts};
  }
  for (const ProjectionSpec& spec : specs) {
    if (!spec.has_bias) continue;
    for (const Piece& piece : spec.pieces) shapes[piece.module + ".bias"] = {piece.row_end - piece.row_begin};
  }
  return shapes;
}

class Matcher {
 public:
  Matcher(const std::filesystem::path& folder, const ModelConfig& config) : folder_(folder), config_(config) {}

  /// Sorts the tensors of the files by canonical name.
  void collect(const Shards& shards) {
    for (const FileTensor& tensor : shards.tensors()) {
      const WeightName name = canonical_name(tensor.entry->name, config_);
      if (name.kind == WeightName::Kind::kDropped) continue;
      auto& place = name.kind == WeightName::Kind::kModel ? unclaimed_ : matched_.pass_through;
      const auto [other, first] = place.emplace(name.canonical, tensor);
      if (!first) twice_.push_back(fmt::format("{} and {} are both {}", described(other->second), described(tensor), name.canonical));
    }
  }

  void claim_others(const std::map<std::string, Shape>& shapes) {
    for (const auto& [name, shape] : shapes) claim(name, shape, matched_.others);
  }

  void claim_projection(const ProjectionSpec& spec) {
    if (spec.routed()) {
      const std::string fused = fused_expert_name(spec);
      if (unclaimed_.contains(fused)) return claim(fused, {spec.experts, spec.rows, spec.columns}, matched_.projections);
    }
    for (const Piece& piece : spec.pieces) claim(piece.module + ".weight", {piece.row_end - piece.row_begin, spec.columns}, matched_.projections);
  }

  /// A tied model may store the head too, but then it must be the embedding.
  void drop_tied_head() {
    const auto head = unclaimed_.find("lm_head.weight");
    const auto embedding = matched_.others.find("model.embed_tokens.weight");
    if (!config_.tied_head || head == unclaimed_.end() || embedding == matched_.others.end()) return;
    const TensorEntry &a = *head->second.entry, &b = *embedding->second.entry;
    const auto head_bytes = head->second.bytes(), embedding_bytes = embedding->second.bytes();
    const bool equal = a.dtype == b.dtype && a.shape == b.shape && head_bytes.size() == embedding_bytes.size() &&
                       std::memcmp(head_bytes.data(), embedding_bytes.data(), head_bytes.size()) == 0;
    if (!equal) {
      throw DataError(fmt::format("{}: tie_word_embeddings is true, but {} differs from {}\nhint: set tie_word_embeddings to false, or remove the tensor",
                                  folder_.string(), described(head->second), described(embedding->second)));
    }
    unclaimed_.erase(head);
  }

  MatchedWeights finish() {
    std::vector<std::string> left_over;
    for (const auto& [name, tensor] : unclaimed_) left_over.push_back(described(tensor));
    if (missing_.empty() && left_over.empty() && shapes_.empty() && dtypes_.empty() && twice_.empty()) {
      check_one_dtype();
      return std::move(matched_);
    }
    throw DataError(fmt::format("{}: the weights do not match config.json ({} with {} layers)\n{}{}{}{}{}hint: {}", folder_.string(),
                                config_.model_type, config_.layers, listing("missing", missing_), listing("left over", left_over),
                                listing("wrong shape", shapes_), listing("wrong dtype", dtypes_), listing("there twice", twice_), hint()));
  }

 private:
  void claim(const std::string& name, const Shape& shape, std::map<std::string, FileTensor>& place) {
    const auto found = unclaimed_.find(name);
    if (found == unclaimed_.end()) {
      missing_.push_back(name);
      return;
    }
    const TensorEntry& entry = *found->second.entry;
    if (entry.shape != shape) {
      shapes_.push_back(fmt::format("{} is [{}]; expected [{}]", described(found->second), fmt::join(entry.shape, ", "), fmt::join(shape, ", ")));
    }
    if (entry.dtype != at::kBFloat16 && entry.dtype != at::kHalf && entry.dtype != at::kFloat) {
      dtypes_.push_back(fmt::format("{} is {}; expected BF16, F16 or F32", described(found->second), dtype_name(entry.dtype)));
    }
    place.insert(unclaimed_.extract(found));
  }

  /// Stacked weights have one dtype, and exports one model dtype.
  void check_one_dtype() {
    const FileTensor& first = matched_.projections.begin()->second;
    matched_.dtype = first.entry->dtype;
    for (const auto& [name, tensor] : matched_.projections) {
      if (tensor.entry->dtype == matched_.dtype) continue;
      throw DataError(fmt::format("{}: linear layers have different dtypes: {} is {}, {} is {}\nhint: save the model again in one dtype",
                                  folder_.string(), described(first), dtype_name(matched_.dtype), described(tensor), dtype_name(tensor.entry->dtype)));
    }
  }

  std::string hint() const {
    for (const auto& [name, tensor] : unclaimed_) {
      if (name.find("_scale") != std::string::npos || name.find("_packed") != std::string::npos) return "this looks like a model that is quantized already";
    }
    if (!dtypes_.empty()) return "this looks like a model that is quantized already";
    if (missing_.size() == 1 && missing_.front() == "lm_head.weight") return "a head that is the embedding needs \"tie_word_embeddings\": true";
    if (missing_.empty() && !unclaimed_.empty()) return "is num_hidden_layers, or the model_type, the right one for these files?";
    return "are config.json and the weights of one model, and complete?";
  }

  static std::string described(const FileTensor& tensor) { return fmt::format("{} (in {})", tensor.entry->name, tensor.file_name()); }

  const std::filesystem::path& folder_;
  const ModelConfig& config_;
  std::map<std::string, FileTensor> unclaimed_;
  MatchedWeights matched_;
  std::vector<std::string> missing_, shapes_, dtypes_, twice_;
};

}  // namespace

std::string fused_expert_name(const ProjectionSpec& spec) {
  SW_CHECK(spec.routed(), "{}", spec.name);
  return fmt::format("model.layers.{}.mlp.experts.{}", spec.layer, spec.place == Place::kExpertGateUp ? "gate_up_proj" : "down_proj");
}

MatchedWeights match_weights(const std::filesystem::path& folder, const Shards& shards, const ModelConfig& config,
                             const std::vector<ProjectionSpec>& specs) {
  Matcher matcher(folder, config);
  matcher.collect(shards);
  matcher.claim_others(other_shapes(config, specs));
  for (const ProjectionSpec& spec : specs) matcher.claim_projection(spec);
  matcher.drop_tied_head();
  return matcher.finish();
}

}  // namespace scalewright
