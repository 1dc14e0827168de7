// Batches, the visiting order, random rows, and parts of sources.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "store/safetensors.h"
#include "text/dataset.h"
#include "text/rows.h"

namespace scalewright {
namespace {

std::vector<int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

using Values = std::vector<int64_t>;

TEST(Batch, ShiftsLabelsWithinEachDocument) {
  const Batch batch = batch_from_documents({{{5, 6, 7}, {0, 1, 1}, 40}, {{8, 9}, {1, 1}, 41}, {{3}, {1}, 41}});
  EXPECT_EQ(values(batch.ids), (Values{5, 6, 7, 8, 9, 3}));
  // 8 follows 7 and is a target, but it belongs to another document: nothing is predicted at a document's last token.
  EXPECT_EQ(values(batch.labels), (Values{6, 7, -100, 9, -100, -100}));
  EXPECT_EQ(values(batch.positions), (Values{0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(batch.offsets, (Values{0, 3, 5, 6}));
  EXPECT_EQ(batch.sample_index, (Values{40, 41, 41}));
  EXPECT_EQ(batch.valid_tokens(), 3);
  EXPECT_EQ(batch.tokens(), 6);
}

TEST(Batch, MarksBelongToTheTokenItself) {
  const Batch batch = batch_from_documents({{{5, 6, 7, 8}, {0, 0, 1, 0}, 0}});
  EXPECT_EQ(values(batch.labels), (Values{-100, 7, -100, -100}));
}

TEST(Batch, RowsOfTransformersAreShifted) {
  const at::Tensor ids = at::tensor(Values{1, 2, 3, 4, 5, 6}, at::kLong).view({2, 3});
  const at::Tensor labels = at::tensor(Values{1, -100, 3, 4, 5, -100}, at::kLong).view({2, 3});
  const Batch batch = batch_from_rows(ids, labels);
  EXPECT_EQ(values(batch.labels), (Values{-100, 3, -100, 5, -100, -100}));
  EXPECT_EQ(values(batch.positions), (Values{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.offsets, (Values{0, 3, 6}));
  EXPECT_THROW(batch_from_rows(ids, labels.view({3, 2})), DataError);
}

class VisitRow : public ::testing::TestWithParam<int64_t> {};

TEST_P(VisitRow, IsAPermutationInEachEpoch) {
  const int64_t n = GetParam();
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<bool> seen(n, false);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = visit_row(7, n, epoch * n + i);
      ASSERT_TRUE(row >= 0 && row < n && !seen[row]) << "row " << row << " at " << i << " of epoch " << epoch;
      seen[row] = true;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, VisitRow, ::testing::Values(1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097));

TEST(VisitRow, DiffersBetweenEpochsAndSeeds) {
  const int64_t n = 1000;
  int same_epoch = 0, same_seed = 0, fixed = 0;
  for (int64_t i = 0; i < n; ++i) {
    same_epoch += visit_row(1, n, i) == visit_row(1, n, n + i);
    same_seed += visit_row(1, n, i) == visit_row(2, n, i);
    fixed += visit_row(1, n, i) == i;
  }
  // Two random permutations agree in one place on average (Poisson); 8 or more has probability 1e-5.
  EXPECT_LT(same_epoch, 8);
  EXPECT_LT(same_seed, 8);
  EXPECT_LT(fixed, 8);
}

TEST(VisitRow, MixesNeighbours) {
  // Rank correlation of position and row over 4000 rows: its standard error is 1/sqrt(4000) = 0.016; five of them are allowed.
  const int64_t n = 4000;
  double sum = 0;
  const double mean = (n - 1) / 2.0, variance = (static_cast<double>(n) * n - 1) / 12;
  for (int64_t i = 0; i < n; ++i) sum += (i - mean) * (visit_row(3, n, i) - mean);
  EXPECT_LT(std::abs(sum / n / variance), 0.08);
}

TEST(VisitRow, TakesHugeSources) {
  const int64_t n = 40'000'000'000;
  std::set<int64_t> rows;
  for (int64_t i = 0; i < 1000; ++i) rows.insert(visit_row(1, n, i));
  EXPECT_EQ(rows.size(), 1000u);
  EXPECT_GE(*rows.begin(), 0);
  EXPECT_LT(*rows.rbegin(), n);
}

TEST(RandomRows, AreAFunctionOfSeedRowAndPosition) {
  const auto rows = random_rows(512, 16, 1234, 100);
  const auto longer = random_rows(512, 32, 1234, 200);
  ASSERT_EQ(rows->size(), 100);
  for (int64_t i : {0, 7, 99}) {
    const Document document = rows->row(i).at(0);
    EXPECT_EQ(document.sample_index, i);
    const Document other = longer->row(i).at(0);
    for (int64_t j = 0; j < 16; ++j) {
      EXPECT_EQ(document.ids[j], static_cast<std::int32_t>(Philox(1234, i).below(j, 512)));
      EXPECT_EQ(document.ids[j], other.ids[j]) << "depends on the length of the row or the number of rows";
    }
  }
  EXPECT_NE(rows->row(0).at(0).ids, rows->row(1).at(0).ids);
  EXPECT_NE(rows->row(0).at(0).ids, random_rows(512, 16, 1235, 100)->row(0).at(0).ids);
  EXPECT_NE(rows->content_hash(), longer->content_hash());
}

TEST(MakeBatch, DoesNotDependOnHowTheOrderIsCutIntoBatches) {
  const auto rows = random_rows(512, 8, 5, 10);
  const Batch whole = make_batch(*rows, 11, 4, 12);  // across an epoch's end
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < 12; i += 3) parts.push_back(make_batch(*rows, 11, 4 + i, 3).ids);
  EXPECT_TRUE(at::equal(whole.ids, at::cat(parts)));
  EXPECT_EQ(whole.sample_index.at(0), visit_row(11, 10, 4));
  EXPECT_EQ(make_ordered_batch(*rows, 2, 3).sample_index, (Values{2, 3, 4}));
}

TEST(SplitRows, IsADeterministicPartition) {
  const auto [train, validation] = split_rows(1000, 0.01, 64, 1);
  EXPECT_EQ(validation.size(), 10u);
  std::set<int64_t> all(train.begin(), train.end());
  all.insert(validation.begin(), validation.end());
  EXPECT_EQ(all.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(train.begin(), train.end()));
  EXPECT_EQ(split_rows(1000, 0.01, 64, 1).second, validation);
  EXPECT_EQ(split_rows(1000, 0.5, 64, 1).second.size(), 64u);
  EXPECT_EQ(split_rows(10, 0.01, 64, 1).second.size(), 1u);  // at least one
  EXPECT_EQ(split_rows(1, 0.5, 64, 1).second.size(), 0u);    // never all
  EXPECT_EQ(split_rows(10, 0.0, 64, 1).second.size(), 0u);
}

TEST(SubsetRows, RenumbersAndHasItsOwnIdentity) {
  const std::shared_ptr<const RowSource> rows = random_rows(512, 8, 5, 10);
  const auto view = subset_rows(rows, {7, 2});
  EXPECT_EQ(view->size(), 2);
  EXPECT_EQ(view->row(1).at(0).ids, rows->row(2).at(0).ids);
  EXPECT_EQ(view->row(1).at(0).sample_index, 1);
  EXPECT_NE(view->content_hash(), rows->content_hash());
  EXPECT_NE(view->content_hash(), subset_rows(rows, {2, 7})->content_hash());
}

class TensorRowsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("tensor_rows_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path write(const std::map<std::string, at::Tensor>& tensors) const {
    save_tensors(folder_ / "rows.safetensors", tensors);
    return folder_ / "rows.safetensors";
  }
  std::filesystem::path folder_;
  const at::Tensor ids_ = at::tensor(Values{1, 2, 3, 4, 5, 6}, at::kLong).view({2, 3});
};

TEST_F(TensorRowsFile, AreRowsWithTheirLabelsAsMarks) {
  const auto rows = open_tensor_rows(write({{"input_ids", ids_}, {"labels", at::tensor(Values{-100, 2, 3, 4, -100, 6}, at::kLong).view({2, 3})}}));
  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->row(1).at(0).ids, (std::vector<std::int32_t>{4, 5, 6}));
  EXPECT_EQ(rows->row(1).at(0).is_target, (std::vector<std::uint8_t>{1, 0, 1}));
  EXPECT_EQ(open_tensor_rows(write({{"input_ids", ids_.to(at::kInt)}}))->row(0).at(0).is_target, (std::vector<std::uint8_t>{1, 1, 1}));
}

TEST_F(TensorRowsFile, RefusesWhatIsNoData) {
  EXPECT_THROW(open_tensor_rows(write({{"ids", ids_}})), DataError);
  EXPECT_THROW(open_tensor_rows(write({{"input_ids", ids_.to(at::kFloat)}})), DataError);
  EXPECT_THROW(open_tensor_rows(write({{"input_ids", ids_.view({-1})}})), DataError);
  EXPECT_THROW(open_tensor_rows(write({{"input_ids", -ids_}})), DataError);
  EXPECT_THROW(open_tensor_rows(write({{"input_ids", ids_}, {"labels", ids_ + 1}})), DataError);  // shifted labels
  EXPECT_THROW(open_tensor_rows(write({{"input_ids", ids_}, {"labels", ids_.view({3, 2})}})), DataError);
  Log log(0, LogLevel::kError);
  EXPECT_THROW(open_rows("", {write({{"input_ids", ids_}}).string()}, {}, folder_, 6, log), DataError);  // id 6 of a vocabulary of 6
  EXPECT_EQ(open_rows("", {write({{"input_ids", ids_}}).string()}, {}, folder_, 7, log)->size(), 2);
}

}  // namespace
}  // namespace scalewright
