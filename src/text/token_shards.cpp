#include "text/token_shards.h"

#include <mutex>

#include "base/error.h"
#include "base/hash.h"
#include "store/files.h"
#include "store/safetensors.h"
#include "text/dataset.h"

namespace scalewright {
namespace {

// Up to this much data is verified against its hashes when it is opened; a larger shard when its first row is read.
constexpr std::uintmax_t kVerifyOnOpenBytes = std::uintmax_t{2} << 30;

at::Tensor view_of(const std::vector<int64_t>& values) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kLong);
}

/// One mapped shard, its structure checked on construction and its hash at most once.
class Shard {
 public:
  Shard(std::filesystem::path path, const Json& entry) : path_(std::move(path)), hash_(entry.at("hash").get<std::string>()) {
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(path_, error);
    if (error) refuse("missing or unreadable");
    if (bytes != entry.at("bytes").get<std::uintmax_t>())
      refuse(fmt::format("{} bytes, its manifest says {}", bytes, entry.at("bytes").get<std::uintmax_t>()));
    SafetensorsFile file(path_);
    ids_ = checked(file, "ids", at::kInt);
    is_target_ = checked(file, "is_target", at::kByte);
    doc_offsets_ = checked(file, "doc_offsets", at::kLong);
    row_offsets_ = checked(file, "row_offsets", at::kLong);
    if (ids_.numel() != is_target_.numel()) refuse("ids and is_target differ in length");
    check_offsets(doc_offsets_, ids_.numel(), "doc_offsets");
    check_offsets(row_offsets_, doc_offsets_.numel() - 1, "row_offsets");
    if (rows() != entry.at("rows").get<int64_t>()) refuse("its number of rows is not the manifest's");
  }

  int64_t rows() const { return row_offsets_.numel() - 1; }

  void verify() const {
    std::call_once(verified_, [&] {
      if (hash_file(path_) != hash_) refuse("its contents do not match the hash in manifest.json");
    });
  }

  std::vector<Document> row(int64_t local, int64_t sample_index) const {
    verify();
    const int64_t* rows = row_offsets_.const_data_ptr<int64_t>();
    const int64_t* starts = doc_offsets_.const_data_ptr<int64_t>();
    std::vector<Document> documents;
    for (int64_t d = rows[local]; d < rows[local + 1]; ++d) {
      Document document;
      document.sample_index = sample_index;
      const std::int32_t* ids = ids_.const_data_ptr<std::int32_t>();
      const std::uint8_t* is_target = is_target_.const_data_ptr<std::uint8_t>();
      document.ids.assign(ids + starts[d], ids + starts[d + 1]);
      document.is_target.assign(is_target + starts[d], is_target + starts[d + 1]);
      documents.push_back(std::move(document));
    }
    return documents;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw DataError(fmt::format("{}: damaged token shard: {}\nhint: run `prepare` again", path_.string(), why));
  }

  at::Tensor checked(const SafetensorsFile& file, const char* name, at::ScalarType dtype) const {
    if (file.find(name) == nullptr) refuse(fmt::format("no tensor {}", name));
    at::Tensor tensor = file.tensor(name);
    if (tensor.scalar_type() != dtype || tensor.dim() != 1) refuse(fmt::format("tensor {} has the wrong type or shape", name));
    return tensor;
  }

  void check_offsets(const at::Tensor& offsets, int64_t last, const char* name) const {
    const int64_t* value = offsets.const_data_ptr<int64_t>();
    const int64_t n = offsets.numel();
    bool good = n > 0 && value[0] == 0 && value[n - 1] == last;
    for (int64_t i = 1; good && i < n; ++i) good = value[i] > value[i - 1];
    if (!good) refuse(fmt::format("{} does not ascend from 0 to {}", name, last));
  }

  std::filesystem::path path_;
  std::string hash_;
  at::Tensor ids_, is_target_, doc_offsets_, row_offsets_;
  mutable std::once_flag verified_;
};

class TokenShards : public RowSource {
 public:
  explicit TokenShards(const std::filesystem::path& folder) {
    const Json manifest = read_shards_manifest(folder);
    const std::string where = (folder / "manifest.json").string();
    try {
      content_hash_ = manifest.at("content_hash").get<std::string>();
      std::uintmax_t bytes = 0;
      for (const Json& entry : manifest.at("shards")) {
        shards_.push_back(std::make_unique<Shard>(safe_join(folder, entry.at("file").get<std::string>(), where), entry));
        first_row_.push_back(first_row_.back() + shards_.back()->rows());
        bytes += entry.at("bytes").get<std::uintmax_t>();
      }
      if (bytes <= kVerifyOnOpenBytes)
        for (const auto& shard : shards_) shard->verify();
    } catch (const Json::exception& error) {
      throw DataError(fmt::format("{}: not a manifest of token shards: {}", where, error.what()));
    }
    if (size() == 0) throw DataError(fmt::format("{}: holds no rows", folder.string()));
  }

  int64_t size() const override { return first_row_.back(); }
  std::string content_hash() const override { return content_hash_; }
  std::vector<Document> row(int64_t index) const override {
    SW_CHECK(index >= 0 && index < size(), "row {} of {}", index, size());
    const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), index);
    const std::size_t shard = static_cast<std::size_t>(after - first_row_.begin()) - 1;
    return shards_[shard]->row(index - first_row_[shard], index);
  }

 private:
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<int64_t> first_row_{0};
  std::string content_hash_;
};

}  // namespace

bool is_token_shards(const std::filesystem::path& folder) {
  if (!std::filesystem::is_regular_file(folder / "manifest.json")) return false;
  try {
    const Json manifest = read_json(folder / "manifest.json");
    return manifest.is_object() && manifest.value("kind", Json()) == kTokenShardsKind;
  } catch (const DataError&) {
    return false;
  }
}

Json read_shards_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "manifest.json";
  const Json manifest = read_json(path);
  if (!manifest.is_object() || manifest.value("kind", Json()) != kTokenShardsKind)
    throw DataError(fmt::format("{}: not a manifest of prepared token shards\nhint: `prepare --model DIR --data FILE --out DIR` writes them", path.string()));
  if (manifest.value("version", Json()) != kTokenShardsVersion)
    throw DataError(fmt::format("{}: version {}, this program reads version {}\nhint: run `prepare` again", path.string(),
                                manifest.value("version", Json()).dump(), kTokenShardsVersion));
  return manifest;
}

TokenShardWriter::TokenShardWriter(std::filesystem::path folder, int64_t shard_tokens)
    : folder_(std::move(folder)), shard_tokens_(shard_tokens) {}

void TokenShardWriter::add_row(const std::vector<Document>& documents) {
  SW_CHECK(!documents.empty(), "a row without documents");
  for (const Document& document : documents) {
    SW_CHECK(!document.ids.empty() && document.ids.size() == document.is_target.size(), "{} ids, {} target marks", document.ids.size(),
             document.is_target.size());
    ids_.insert(ids_.end(), document.ids.begin(), document.ids.end());
    is_target_.insert(is_target_.end(), document.is_target.begin(), document.is_target.end());
    doc_offsets_.push_back(static_cast<int64_t>(ids_.size()));
    for (std::int32_t id : document.ids) max_id_ = std::max<int64_t>(max_id_, id);
    // The first token of a document is never predicted, so its mark does not count.
    target_tokens_ += std::count_if(document.is_target.begin() + 1, document.is_target.end(), [](std::uint8_t t) { return t != 0; });
    tokens_ += static_cast<int64_t>(document.ids.size());
    ++documents_;
  }
  row_offsets_.push_back(static_cast<int64_t>(doc_offsets_.size()) - 1);
  ++rows_;
  if (static_cast<int64_t>(ids_.size()) >= shard_tokens_) write_shard();
}

void TokenShardWriter::write_shard() {
  const std::string name = fmt::format("shard_{:05d}.safetensors", shards_.size());
  const int64_t tokens = static_cast<int64_t>(ids_.size());
  save_tensors(folder_ / name, {{"ids", at::from_blob(ids_.data(), {tokens}, at::kInt)},
                                {"is_target", at::from_blob(is_target_.data(), {tokens}, at::kByte)},
                                {"doc_offsets", view_of(doc_offsets_)},
                                {"row_offsets", view_of(row_offsets_)}});
  shards_.push_back({{"file", name},
                     {"bytes", std::filesystem::file_size(folder_ / name)},
                     {"hash", hash_file(folder_ / name)},
                     {"rows", static_cast<int64_t>(row_offsets_.size()) - 1},
                     {"documents", static_cast<int64_t>(doc_offsets_.size()) - 1},
                     {"tokens", tokens}});
  ids_.clear();
  is_target_.clear();
  doc_offsets_.assign(1, 0);
  row_offsets_.assign(1, 0);
}

std::string TokenShardWriter::finish(const OrderedJson& description) {
  if (row_offsets_.size() > 1) write_shard();
  Hasher hasher;
  for (const OrderedJson& shard : shards_) hasher.update(shard.at("hash").get<std::string>());
  OrderedJson manifest = {{"kind", kTokenShardsKind}, {"version", kTokenShardsVersion}, {"content_hash", hasher.hex()}};
  manifest.update(description);
  manifest["rows"] = rows_;
  manifest["documents"] = documents_;
  manifest["tokens"] = tokens_;
  manifest["target_tokens"] = target_tokens_;
  manifest["max_id"] = max_id_;
  manifest["shards"] = shards_;
  write_file_atomic(folder_ / "manifest.json", manifest.dump(2) + "\n");
  return hasher.hex();
}

std::unique_ptr<RowSource> open_token_shards(const std::filesystem::path& folder) { return std::make_unique<TokenShards>(folder); }

}  // namespace scalewright
