// Which part of a linear, and of its scales, this rank holds. One process holds everything.
#pragma once
#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "model/config.h"
#include "model/projection_spec.h"

namespace scalewright {

struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

/// Part `index` of `parts` of 0..total, cut at multiples of `unit` (or of their common divisor), the first parts one unit larger.
IndexRange split_range(int64_t total, int64_t unit, int64_t parts, int64_t index);

/// Layers of a pipeline stage.
IndexRange stage_layers(const ModelConfig& config, const Mesh& mesh);

/// How tensor and expert parallelism cut a stacked weight [E,N,K].
struct ProjectionPart {
  enum class Cut { kNone, kRows, kColumns, kExperts };
  Cut cut = Cut::kNone;
  IndexRange experts, columns;
  int64_t whole_rows = 0, whole_columns = 0;
  // Cut by columns: how many each tp rank has, and how many of the input's features (attention heads) it is given.
  std::vector<int64_t> columns_of_ranks, given_columns;
  std::vector<IndexRange> rows;            // in the whole stack; q, k and v, or gate and up, are cut each for itself
  std::vector<bool> rows_owned;       // by range: false where a lower rank holds the same rows
  bool rows_shared = false;           // several ranks hold the same rows (fewer KV heads than tp)
  const Group* holders = nullptr;     // of the other parts: tp or ep; nullptr when cut is kNone
  const Group* replicas = nullptr;    // same part, other tokens; nullptr: none
  // Dense weights spread over the data group (parallel.shard_dense): which of the tp part's rows each of its ranks has.
  const Group* shards = nullptr;
  std::vector<int64_t> shard_rows;
  const Group* owners = nullptr;      // of all parts of the weight: holders, or with shards the whole stage
  int64_t local_rows() const;
};

/// `unit`: a multiple of every group in use, so that no group of scales is cut. `canonical`: every dense weight is cut by rows, as
/// canonical_linear takes it. Throws UserError naming the degree that does not fit.
ProjectionPart projection_part(const ModelConfig& config, const ProjectionSpec& spec, const Mesh& mesh, int64_t unit, bool canonical = false);

/// Where the elements of one trainable lie among the ranks.
class ScalePlacement {
 public:
  /// Of weight scales, whole sizes [E,N,G]; `one_scale_a_row`: G is 1 because channels have one scale, however the columns are cut.
  static ScalePlacement of_weight(const ProjectionPart& part, const std::vector<int64_t>& whole, bool one_scale_a_row);
  /// Of an input's alpha: one for the whole projection [1], or one an expert [E].
  static ScalePlacement of_input(const ProjectionPart& part, const std::vector<int64_t>& whole);

  const std::vector<int64_t>& whole() const { return whole_; }
  const Group* replicas() const { return replicas_; }   // ranks with the same elements; nullptr: none
  /// The whole tensor, on every holder; all of them must call it.
  at::Tensor gather(const at::Tensor& local) const;
  at::Tensor narrow(const at::Tensor& whole) const;
  /// A gradient becomes the sum over all ranks that hold other tokens, or other parts, of the same scales. All of them must call it.
  void sum_gradient(at::Tensor& gradient) const;
  /// The elements that this rank counts in norms: every element on exactly one rank.
  at::Tensor owned(const at::Tensor& local) const;

 private:
  /// A rectangle of the whole tensor that is here.
  struct Block {
    std::vector<int64_t> whole, local, size;
    bool owned;   // no lower rank has it too
  };
  ScalePlacement(const ProjectionPart& part, std::vector<int64_t> whole);
  static at::Tensor block_of(const at::Tensor& x, const std::vector<int64_t>& begin, const std::vector<int64_t>& size);
  at::Tensor place(const at::Tensor& local, bool only_owned) const;

  std::vector<int64_t> whole_, local_;
  std::vector<Block> blocks_;
  bool shared_ = false;   // some elements are on several holders
  const Group* owners_;
  const Group* replicas_;
};

}  // namespace scalewright
