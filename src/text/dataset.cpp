#include "text/dataset.h"

#include "base/error.h"
#include "base/rng.h"

namespace scalewright {
namespace {

constexpr int kFeistelRounds = 8;

/// A balanced Feistel network on 2 * half_bits bits, keyed by (seed, epoch).
std::uint64_t feistel(std::uint64_t value, int half_bits, std::uint64_t seed, std::uint64_t epoch) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (std::uint32_t round = 0; round < kFeistelRounds; ++round) {
    const std::array<std::uint32_t, 4> words =
        philox({static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)},
               {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    const std::uint64_t next = left ^ (words[0] & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

class RandomRows : public RowSource {
 public:
  RandomRows(int64_t vocabulary, int64_t seq_len, std::uint64_t seed, int64_t size)
      : vocabulary_(vocabulary), seq_len_(seq_len), seed_(seed), size_(size) {}
  int64_t size() const override { return size_; }
  std::string content_hash() const override {
    return fmt::format("random:vocabulary={},seq_len={},seed={},size={}", vocabulary_, seq_len_, seed_, size_);
  }
  std::vector<Document> row(int64_t index) const override {
    SW_CHECK(index >= 0 && index < size_, "row {} of {}", index, size_);
    const Philox stream(seed_, static_cast<std::uint64_t>(index));
    Document document;
    document.sample_index = index;
    document.ids.resize(seq_len_);
    document.is_target.assign(seq_len_, 1);
    for (int64_t j = 0; j < seq_len_; ++j) document.ids[j] = static_cast<std::int32_t>(stream.below(j, vocabulary_));
    return {std::move(document)};
  }

 private:
  int64_t vocabulary_, seq_len_;
  std::uint64_t seed_;
  int64_t size_;
};

template <typename RowOf>
Batch gather(const RowSource& source, int64_t count, const RowOf& row_of) {
  std::vector<Document> documents;
  for (int64_t i = 0; i < count; ++i)
    for (Document& document : source.row(row_of(i))) documents.push_back(std::move(document));
  return batch_from_documents(documents);
}

}  // namespace

std::unique_ptr<RowSource> random_rows(int64_t vocabulary, int64_t seq_len, std::uint64_t seed, int64_t size) {
  SW_CHECK(vocabulary > 0 && seq_len > 0 && size > 0, "vocabulary {}, seq_len {}, size {}", vocabulary, seq_len, size);
  return std::make_unique<RandomRows>(vocabulary, seq_len, seed, size);
}

int64_t visit_row(std::uint64_t seed, int64_t n, int64_t global_index) {
  SW_CHECK(n > 0 && global_index >= 0, "n {}, index {}", n, global_index);
  const std::uint64_t size = static_cast<std::uint64_t>(n), epoch = static_cast<std::uint64_t>(global_index / n);
  int half_bits = 1;
  while (half_bits < 31 && (std::uint64_t{1} << (2 * half_bits)) < size) ++half_bits;
  SW_CHECK((std::uint64_t{1} << (2 * half_bits)) >= size, "{} rows", n);
  // Cycle walking: the network permutes at most 4n values; following its cycle back into [0, n) permutes those.
  std::uint64_t value = static_cast<std::uint64_t>(global_index % n);
  do value = feistel(value, half_bits, seed, epoch);
  while (value >= size);
  return static_cast<int64_t>(value);
}

Batch make_batch(const RowSource& source, std::uint64_t seed, int64_t global_begin, int64_t count) {
  return gather(source, count, [&](int64_t i) { return visit_row(seed, source.size(), global_begin + i); });
}

Batch make_ordered_batch(const RowSource& source, int64_t begin, int64_t count) {
  return gather(source, count, [&](int64_t i) { return begin + i; });
}

}  // namespace scalewright
