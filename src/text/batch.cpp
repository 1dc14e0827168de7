#include "text/batch.h"

#include "base/error.h"

namespace scalewright {
namespace {

constexpr int64_t kNoLoss = -100;  // the label that transformers and we leave out of the loss

at::Tensor int64_tensor(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong));
}

}  // namespace

int64_t Batch::valid_tokens() const { return (labels != kNoLoss).sum().item<int64_t>(); }

Batch batch_from_rows(const at::Tensor& ids_BS, const at::Tensor& labels_BS) {
  if (ids_BS.dim() != 2 || labels_BS.sizes() != ids_BS.sizes() || ids_BS.size(1) == 0)
    throw DataError(fmt::format("input_ids and labels must both be [B,S] with S > 0, got {} and {} dimensions", ids_BS.dim(), labels_BS.dim()));
  const int64_t rows = ids_BS.size(0), length = ids_BS.size(1);
  const at::Tensor labels = labels_BS.to(at::kCPU, at::kLong);
  at::Tensor shifted = at::full({rows, length}, kNoLoss, at::kLong);
  shifted.narrow(1, 0, length - 1).copy_(labels.narrow(1, 1, length - 1));
  Batch batch;
  batch.ids = ids_BS.to(at::kCPU, at::kLong).contiguous().view({-1}).clone();
  batch.labels = shifted.view({-1});
  batch.positions = at::arange(length, at::kLong).repeat({rows});
  for (int64_t row = 0; row <= rows; ++row) batch.offsets.push_back(row * length);
  for (int64_t row = 0; row < rows; ++row) batch.sample_index.push_back(row);
  return batch;
}

Batch batch_from_documents(const std::vector<Document>& documents) {
  std::vector<int64_t> ids, labels, positions;
  Batch batch;
  batch.offsets.push_back(0);
  for (const Document& document : documents) {
    const std::size_t length = document.ids.size();
    SW_CHECK(length > 0 && document.is_target.size() == length, "{} ids, {} target marks", length, document.is_target.size());
    for (std::size_t i = 0; i < length; ++i) {
      ids.push_back(document.ids[i]);
      positions.push_back(static_cast<int64_t>(i));
      const bool predicts = i + 1 < length && document.is_target[i + 1] != 0;
      labels.push_back(predicts ? document.ids[i + 1] : kNoLoss);
    }
    batch.offsets.push_back(static_cast<int64_t>(ids.size()));
    batch.sample_index.push_back(document.sample_index);
  }
  batch.ids = int64_tensor(ids);
  batch.labels = int64_tensor(labels);
  batch.positions = int64_tensor(positions);
  return batch;
}

}  // namespace scalewright
