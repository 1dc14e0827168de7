#include "eval/prompt_rows.h"

#include "base/error.h"
#include "base/hash.h"

namespace scalewright {

namespace {

class PromptRows : public RowSource {
 public:
  explicit PromptRows(std::vector<std::vector<int32_t>> prompts) : prompts_(std::move(prompts)) {}

  int64_t size() const override { return static_cast<int64_t>(prompts_.size()); }

  std::vector<Document> row(int64_t index) const override {
    SW_CHECK(index >= 0 && index < size(), "row {} of {}", index, size());
    const std::vector<int32_t>& ids = prompts_[static_cast<std::size_t>(index)];
    return {{ids, std::vector<std::uint8_t>(ids.size(), 0), index}};
  }

  std::string content_hash() const override {
    Hasher hasher;
    for (const auto& ids : prompts_) {
      const std::uint64_t length = ids.size();
      hasher.update(std::as_bytes(std::span(&length, 1)));
      hasher.update(std::as_bytes(std::span(ids)));
    }
    return hasher.hex();
  }

 private:
  std::vector<std::vector<int32_t>> prompts_;
};

}  // namespace

std::unique_ptr<RowSource> prompt_rows(std::vector<std::vector<int32_t>> prompts) { return std::make_unique<PromptRows>(std::move(prompts)); }

}  // namespace scalewright
