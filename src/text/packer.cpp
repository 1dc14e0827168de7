#include "text/packer.h"

#include "base/error.h"

namespace scalewright {
namespace {

constexpr std::size_t kOpenRows = 256;  // 256 rows of 32K tokens are 40 MB

}  // namespace

void Packer::add(Document document) {
  const int64_t length = static_cast<int64_t>(document.ids.size());
  SW_CHECK(length > 0 && length <= seq_len_, "a document of {} tokens, rows of {}", length, seq_len_);
  std::vector<Document> row;
  Key key{seq_len_, next_age_};
  if (!packing_) {
    row.push_back(std::move(document));
    return sink_(row);
  }
  if (const auto best = open_.lower_bound({length, 0}); best != open_.end()) {
    key = best->first;
    row = std::move(best->second);
    open_.erase(best);
  } else {
    ++next_age_;
  }
  row.push_back(std::move(document));
  key.first -= length;
  if (key.first == 0) return sink_(row);
  open_.emplace(key, std::move(row));
  if (open_.size() > kOpenRows) {
    sink_(open_.begin()->second);
    open_.erase(open_.begin());
  }
}

void Packer::finish() {
  std::map<int64_t, std::vector<Document>> by_age;
  for (auto& [key, row] : open_) by_age.emplace(key.second, std::move(row));
  open_.clear();
  for (const auto& [age, row] : by_age) sink_(row);
}

}  // namespace scalewright
