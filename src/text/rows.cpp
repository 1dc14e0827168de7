#include "text/rows.h"

#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "store/safetensors.h"
#include "text/prepare.h"
#include "text/token_shards.h"

namespace scalewright {
namespace {

constexpr int64_t kRandomRows = int64_t{1} << 20;       // an epoch of random rows; they cost nothing
constexpr std::uint64_t kSplitSalt = 0x9e3779b97f4a7c15;  // the split must not follow the order of the first epoch

class SubsetRows : public RowSource {
 public:
  SubsetRows(std::shared_ptr<const RowSource> source, std::vector<int64_t> rows) : source_(std::move(source)), rows_(std::move(rows)) {
    for (int64_t row : rows_) SW_CHECK(row >= 0 && row < source_->size(), "row {} of {}", row, source_->size());
    Hasher hasher;
    hasher.update(source_->content_hash());
    hasher.update(std::as_bytes(std::span(rows_)));
    content_hash_ = hasher.hex();
  }
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  std::string content_hash() const override { return content_hash_; }
  std::vector<Document> row(int64_t index) const override {
    SW_CHECK(index >= 0 && index < size(), "row {} of {}", index, size());
    std::vector<Document> documents = source_->row(rows_[static_cast<std::size_t>(index)]);
    for (Document& document : documents) document.sample_index = index;
    return documents;
  }

 private:
  std::shared_ptr<const RowSource> source_;
  std::vector<int64_t> rows_;
  std::string content_hash_;
};

class ConcatenatedRows : public RowSource {
 public:
  explicit ConcatenatedRows(std::vector<std::unique_ptr<RowSource>> sources) : sources_(std::move(sources)) {
    Hasher hasher;
    for (const auto& source : sources_) {
      first_row_.push_back(first_row_.back() + source->size());
      hasher.update(source->content_hash());
    }
    content_hash_ = hasher.hex();
  }
  int64_t size() const override { return first_row_.back(); }
  std::string content_hash() const override { return content_hash_; }
  std::vector<Document> row(int64_t index) const override {
    SW_CHECK(index >= 0 && index < size(), "row {} of {}", index, size());
    const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), index);
    const std::size_t source = static_cast<std::size_t>(after - first_row_.begin()) - 1;
    std::vector<Document> documents = sources_[source]->row(index - first_row_[source]);
    for (Document& document : documents) document.sample_index = index;
    return documents;
  }

 private:
  std::vector<std::unique_ptr<RowSource>> sources_;
  std::vector<int64_t> first_row_{0};
  std::string content_hash_;
};

class TensorRows : public RowSource {
 public:
  explicit TensorRows(const std::filesystem::path& path) : path_(path) {
    const SafetensorsFile file(path);
    ids_BS_ = matrix(file, "input_ids");
    if (file.find("labels") != nullptr) labels_BS_ = matrix(file, "labels");
    if (labels_BS_.defined() && labels_BS_.sizes() != ids_BS_.sizes()) refuse("input_ids and labels differ in shape");
    if (ids_BS_.numel() == 0) refuse("input_ids is empty");
    if (ids_BS_.min().item<int64_t>() < 0 || max_id() > std::numeric_limits<std::int32_t>::max()) refuse("input_ids holds a negative or too large id");
    if (labels_BS_.defined() && !at::logical_or(labels_BS_ == ids_BS_, labels_BS_ == -100).all().item<bool>())
      refuse("labels must hold the id itself or -100 (unshifted, as transformers takes them)");
    Hasher hasher;
    hasher.update(bytes_of(ids_BS_));
    if (labels_BS_.defined()) hasher.update(bytes_of(labels_BS_));
    content_hash_ = hasher.hex();
  }
  int64_t size() const override { return ids_BS_.size(0); }
  std::string content_hash() const override { return content_hash_; }
  int64_t max_id() const { return ids_BS_.max().item<int64_t>(); }
  std::vector<Document> row(int64_t index) const override {
    SW_CHECK(index >= 0 && index < size(), "row {} of {}", index, size());
    const int64_t length = ids_BS_.size(1);
    const int64_t* ids = ids_BS_.const_data_ptr<int64_t>() + index * length;
    const int64_t* labels = labels_BS_.defined() ? labels_BS_.const_data_ptr<int64_t>() + index * length : nullptr;
    Document document;
    document.sample_index = index;
    document.ids.assign(ids, ids + length);
    document.is_target.assign(static_cast<std::size_t>(length), 1);
    for (int64_t i = 0; labels != nullptr && i < length; ++i) document.is_target[static_cast<std::size_t>(i)] = labels[i] != -100;
    return {std::move(document)};
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw DataError(fmt::format("{}: {}", path_.string(), why)); }
  at::Tensor matrix(const SafetensorsFile& file, const char* name) const {
    if (file.find(name) == nullptr) refuse(fmt::format("no tensor {} (expected input_ids [B,S], and labels [B,S] if not all tokens are targets)", name));
    const at::Tensor tensor = file.tensor(name);
    if (tensor.dim() != 2 || (tensor.scalar_type() != at::kLong && tensor.scalar_type() != at::kInt)) refuse(fmt::format("{} must be [B,S] of int32 or int64", name));
    return tensor.to(at::kLong).contiguous();
  }
  static std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
    return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
  }

  std::filesystem::path path_;
  at::Tensor ids_BS_, labels_BS_;
  std::string content_hash_;
};

void check_vocabulary(int64_t max_id, int64_t vocabulary, const std::string& what) {
  if (max_id >= vocabulary)
    throw DataError(fmt::format("{}: token {} does not fit the model's vocabulary of {}\nhint: was it prepared with another model's tokenizer?", what, max_id, vocabulary));
}

std::unique_ptr<RowSource> open_shards_checked(const std::filesystem::path& folder, int64_t vocabulary) {
  std::unique_ptr<RowSource> rows = open_token_shards(folder);
  const Json manifest = read_shards_manifest(folder);
  if (!manifest.contains("max_id") || !manifest["max_id"].is_number_integer()) throw DataError(fmt::format("{}/manifest.json: no max_id", folder.string()));
  check_vocabulary(manifest["max_id"], vocabulary, folder.string());
  return rows;
}

}  // namespace

std::pair<std::vector<int64_t>, std::vector<int64_t>> split_rows(int64_t n, double fraction, int64_t max_rows, std::uint64_t seed) {
  int64_t held = 0;
  if (n > 1 && fraction > 0 && max_rows > 0) held = std::clamp<int64_t>(std::llround(fraction * static_cast<double>(n)), 1, std::min(max_rows, n - 1));
  std::vector<bool> is_held(static_cast<std::size_t>(n), false);
  for (int64_t i = 0; i < held; ++i) is_held[static_cast<std::size_t>(visit_row(seed ^ kSplitSalt, n, i))] = true;
  std::pair<std::vector<int64_t>, std::vector<int64_t>> parts;
  for (int64_t i = 0; i < n; ++i) (is_held[static_cast<std::size_t>(i)] ? parts.second : parts.first).push_back(i);
  return parts;
}

std::unique_ptr<RowSource> subset_rows(std::shared_ptr<const RowSource> source, std::vector<int64_t> rows) {
  return std::make_unique<SubsetRows>(std::move(source), std::move(rows));
}

std::unique_ptr<RowSource> concatenated_rows(std::vector<std::unique_ptr<RowSource>> sources) {
  SW_CHECK(!sources.empty(), "no sources");
  if (sources.size() == 1) return std::move(sources.front());
  return std::make_unique<ConcatenatedRows>(std::move(sources));
}

std::unique_ptr<RowSource> open_tensor_rows(const std::filesystem::path& file) { return std::make_unique<TensorRows>(file); }

std::unique_ptr<RowSource> open_rows(const std::filesystem::path& model, const std::vector<std::string>& files, const DataSection& options,
                                     const std::filesystem::path& cache, int64_t vocabulary, Log& log, std::uint64_t seed) {
  if (files.empty()) {
    log.warning("no data files: random tokens stand in for data (seed {}); use them to test speed, not to recover accuracy", seed);
    return random_rows(vocabulary, options.seq_len, seed, options.max_samples > 0 ? options.max_samples : kRandomRows);
  }
  std::vector<std::unique_ptr<RowSource>> sources;
  std::vector<std::string> raw;
  for (const std::string& file : files) {
    if (file.ends_with(".safetensors")) {
      auto rows = std::make_unique<TensorRows>(file);
      check_vocabulary(rows->max_id(), vocabulary, file);
      sources.push_back(std::move(rows));
    } else if (std::filesystem::is_directory(file)) {
      sources.push_back(open_shards_checked(file, vocabulary));
    } else {
      raw.push_back(file);
    }
  }
  if (!raw.empty()) {
    const std::filesystem::path folder = cache / fmt::format("rows_{}", preparation_key(model, raw, options).substr(0, 16));
    prepare_data(model, raw, options, folder, log);
    sources.push_back(open_shards_checked(folder, vocabulary));
  }
  return concatenated_rows(std::move(sources));
}

}  // namespace scalewright
