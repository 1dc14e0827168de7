#include "model/projection_part.h"

#include <numeric>

#include "base/error.h"

namespace scalewright {

namespace {

/// KV heads of a tp rank: its share, or with fewer heads than ranks one head that it shares with others.
IndexRange kv_heads(const ModelConfig& config, const Group& tp, bool* owned) {
  if (config.kv_heads >= tp.size()) {
    *owned = true;
    return split_range(config.kv_heads, 1, tp.size(), tp.rank());
  }
  const int64_t sharers = tp.size() / config.kv_heads, head = tp.rank() / sharers;
  *owned = tp.rank() % sharers == 0;
  return {head, head + 1};
}

void check_heads(const ModelConfig& config, int64_t tp) {
  const bool kv_fit = config.kv_heads >= tp ? config.kv_heads % tp == 0 : tp % config.kv_heads == 0;
  if (config.heads % tp != 0 || !kv_fit)
    throw UserError(fmt::format("parallel.tp is {}, but the model has {} attention heads and {} key and value heads\nhint: tp must divide the heads, and divide (or be a "
                                "multiple of) the key and value heads", tp, config.heads, config.kv_heads));
}

IndexRange scaled(const IndexRange& range, int64_t factor, int64_t offset) { return {offset + range.begin * factor, offset + range.end * factor}; }

void cut_rows(const ModelConfig& config, const ProjectionSpec& spec, const Group& tp, int64_t unit, ProjectionPart& part) {
  part.cut = ProjectionPart::Cut::kRows;
  if (spec.place == Place::kQkv) {
    bool owned = true;
    const int64_t d = config.head_dim, q = config.heads * d, kv = config.kv_heads * d;
    const IndexRange heads = split_range(config.heads, 1, tp.size(), tp.rank()), kv_range = kv_heads(config, tp, &owned);
    part.rows = {scaled(heads, d, 0), scaled(kv_range, d, q), scaled(kv_range, d, q + kv)};
    part.rows_owned = {true, owned, owned};
    part.rows_shared = config.kv_heads < tp.size();
    return;
  }
  const int64_t inner = spec.rows / 2;   // gate, then up, cut where the next linear's columns are
  const IndexRange range = split_range(inner, unit, tp.size(), tp.rank());
  part.rows = {range, scaled(range, 1, inner)};
  part.rows_owned = {true, true};
}

void cut_dense(const ModelConfig& config, const ProjectionSpec& spec, const Group& tp, int64_t unit, bool canonical, ProjectionPart& part) {
  part.holders = part.owners = &tp;
  if (canonical) {
    part.cut = ProjectionPart::Cut::kRows;
    part.rows = {split_range(spec.rows, 1, tp.size(), tp.rank())};
    return;
  }
  check_heads(config, tp.size());
  if (spec.place == Place::kO || spec.place == Place::kDown || spec.place == Place::kSharedDown) {
    part.cut = ProjectionPart::Cut::kColumns;
    part.columns = split_range(spec.columns, unit, tp.size(), tp.rank());
    const int64_t given_unit = spec.place == Place::kO ? config.head_dim : unit;
    for (int r = 0; r < tp.size(); ++r) {
      part.columns_of_ranks.push_back(split_range(spec.columns, unit, tp.size(), r).size());
      part.given_columns.push_back(split_range(spec.columns, given_unit, tp.size(), r).size());
    }
  } else {
    cut_rows(config, spec, tp, unit, part);
  }
}

/// Of the tp part's rows, counted through, this data rank keeps its share.
void shard_rows(const Mesh& mesh, ProjectionPart& part) {
  const Group& data = mesh.data();
  const int64_t all = part.local_rows();
  for (int r = 0; r < data.size(); ++r) part.shard_rows.push_back(split_range(all, 1, data.size(), r).size());
  const IndexRange own = split_range(all, 1, data.size(), data.rank());
  std::vector<IndexRange> rows;
  std::vector<bool> owned;
  int64_t before = 0;
  for (std::size_t i = 0; i < part.rows.size(); ++i) {
    const IndexRange range = part.rows[i];
    const int64_t begin = std::max(own.begin, before), end = std::min(own.end, before + range.size());
    if (begin < end) {
      rows.push_back({range.begin + begin - before, range.begin + end - before});
      owned.push_back(part.rows_owned[i]);
    }
    before += range.size();
  }
  part.rows = std::move(rows);
  part.rows_owned = std::move(owned);
  part.shards = &data;
  part.owners = &mesh.stage();
  part.replicas = nullptr;
}

}  // namespace

IndexRange split_range(int64_t total, int64_t unit, int64_t parts, int64_t index) {
  const int64_t step = unit > 1 ? std::gcd(total, unit) : 1, units = total / step, each = units / parts, more = units % parts;
  const int64_t begin = index * each + std::min(index, more);
  return {begin * step, (begin + each + (index < more ? 1 : 0)) * step};
}

IndexRange stage_layers(const ModelConfig& config, const Mesh& mesh) {
  if (config.layers < mesh.pp().size())
    throw UserError(fmt::format("parallel.pp is {}, but the model has {} layers\nhint: at least one layer a stage", mesh.pp().size(), config.layers));
  const Degrees& degrees = mesh.degrees();
  const int64_t stages = mesh.pp().size(), stage = mesh.pp().rank(), first = degrees.first_stage_layers, last = degrees.last_stage_layers;
  if (stages == 1 || (first == 0 && last == 0)) return split_range(config.layers, 1, stages, stage);
  const int64_t others = stages - (first > 0) - (last > 0), rest = config.layers - first - last;
  if (rest < others || (others == 0 && rest != 0))
    throw UserError(fmt::format("parallel.first_stage_layers {} and parallel.last_stage_layers {} leave {} of {} layers to the other {} of {} stages\nhint: {}", first, last, rest,
                                config.layers, others, stages, others == 0 ? "leave one of them at 0" : "at least one layer a stage: lower them, or parallel.pp"));
  if (first > 0 && stage == 0) return {0, first};
  if (last > 0 && stage == stages - 1) return {config.layers - last, config.layers};
  const IndexRange range = split_range(rest, 1, others, stage - (first > 0));
  return {first + range.begin, first + range.end};
}

int64_t ProjectionPart::local_rows() const {
  int64_t n = 0;
  for (const IndexRange& range : rows) n += range.size();
  return n;
}

ProjectionPart projection_part(const ModelConfig& config, const ProjectionSpec& spec, const Mesh& mesh, int64_t unit, bool canonical) {
  ProjectionPart part;
  part.experts = {0, spec.experts};
  part.rows = {{0, spec.rows}};
  part.rows_owned = {true};
  part.columns = {0, spec.columns};
  part.whole_rows = spec.rows;
  part.whole_columns = spec.columns;
  if (spec.routed()) {
    const Group& ep = mesh.ep();
    if (config.experts % ep.size() != 0)
      throw UserError(fmt::format("parallel.ep is {}, but the model has {} experts\nhint: ep must divide the number of experts", ep.size(), config.experts));
    if (!mesh.edp().alone()) part.replicas = &mesh.edp();
    if (ep.alone()) return part;
    part.cut = ProjectionPart::Cut::kExperts;
    part.holders = part.owners = &ep;
    part.experts = split_range(config.experts, 1, ep.size(), ep.rank());
    return part;
  }
  if (!mesh.data().alone()) part.replicas = &mesh.data();
  if (!mesh.tp().alone()) cut_dense(config, spec, mesh.tp(), unit, canonical, part);
  if (mesh.degrees().shard_dense && !mesh.data().alone()) shard_rows(mesh, part);
  return part;
}

ScalePlacement ScalePlacement::of_weight(const ProjectionPart& part, const std::vector<int64_t>& whole, bool one_scale_a_row) {
  ScalePlacement placement(part, whole);
  const bool cut = part.cut == ProjectionPart::Cut::kColumns;
  const int64_t groups = whole[2];
  const IndexRange columns = cut && !one_scale_a_row ? IndexRange{part.columns.begin * groups / part.whole_columns, part.columns.end * groups / part.whole_columns}
                                                : IndexRange{0, groups};
  int64_t row = 0;
  for (std::size_t i = 0; i < part.rows.size(); ++i) {
    const IndexRange& rows = part.rows[i];
    const bool owned = part.rows_owned[i] && !(cut && one_scale_a_row && part.holders->rank() > 0);
    placement.blocks_.push_back({{part.experts.begin, rows.begin, columns.begin}, {0, row, 0}, {part.experts.size(), rows.size(), columns.size()}, owned});
    row += rows.size();
  }
  placement.shared_ = part.holders && (part.rows_shared || (cut && one_scale_a_row));
  placement.local_ = {part.experts.size(), row, columns.size()};
  return placement;
}

ScalePlacement ScalePlacement::of_input(const ProjectionPart& part, const std::vector<int64_t>& whole) {
  ScalePlacement placement(part, whole);
  const bool by_expert = part.cut == ProjectionPart::Cut::kExperts && whole[0] > 1;
  const IndexRange range = by_expert ? part.experts : IndexRange{0, whole[0]};
  placement.shared_ = part.owners && !by_expert;
  placement.blocks_ = {{{range.begin}, {0}, {range.size()}, !placement.shared_ || part.owners->rank() == 0}};
  placement.local_ = {range.size()};
  return placement;
}

ScalePlacement::ScalePlacement(const ProjectionPart& part, std::vector<int64_t> whole)
    : whole_(std::move(whole)), owners_(part.owners), replicas_(part.replicas) {}

at::Tensor ScalePlacement::block_of(const at::Tensor& x, const std::vector<int64_t>& begin, const std::vector<int64_t>& size) {
  at::Tensor block = x;
  for (std::size_t d = 0; d < begin.size(); ++d) block = block.narrow(static_cast<int64_t>(d), begin[d], size[d]);
  return block;
}

at::Tensor ScalePlacement::place(const at::Tensor& local, bool only_owned) const {
  at::Tensor whole = at::zeros(whole_, local.options().requires_grad(false));
  for (const Block& block : blocks_)
    if (block.owned || !only_owned) block_of(whole, block.whole, block.size).add_(block_of(local.detach(), block.local, block.size));
  return whole;
}

at::Tensor ScalePlacement::gather(const at::Tensor& local) const {
  at::NoGradGuard no_grad;
  if (!owners_) return local.detach();
  at::Tensor whole = place(local, true);
  owners_->all_reduce(whole, Reduce::kSum);
  return whole;
}

at::Tensor ScalePlacement::narrow(const at::Tensor& whole) const {
  if (!owners_) return whole;
  at::Tensor local = at::empty(local_, whole.options());
  for (const Block& block : blocks_) block_of(local, block.local, block.size).copy_(block_of(whole, block.whole, block.size));
  return local;
}

void ScalePlacement::sum_gradient(at::Tensor& gradient) const {
  at::NoGradGuard no_grad;
  if (shared_) {
    at::Tensor whole = place(gradient, false);
    owners_->all_reduce(whole, Reduce::kSum);
    gradient.copy_(narrow(whole));
  }
  if (replicas_) replicas_->all_reduce(gradient, Reduce::kSum);
}

at::Tensor ScalePlacement::owned(const at::Tensor& local) const {
  if (replicas_ && replicas_->rank() > 0) return local.detach().flatten().narrow(0, 0, 0);
  std::vector<at::Tensor> parts;
  for (const Block& block : blocks_)
    if (block.owned) parts.push_back(block_of(local.detach(), block.local, block.size).flatten());
  return parts.empty() ? local.detach().flatten().narrow(0, 0, 0) : at::cat(parts);
}

}  // namespace scalewright
