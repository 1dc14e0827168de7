// A two-layer mixture of experts, random rows, and a folder that goes away: what the trainer's tests run on.
#pragma once
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "comm/mesh.h"
#include "config/config.h"
#include "model/decoder.h"
#include "text/dataset.h"
#include "train/trainer.h"

namespace scalewright {

/// Rows of unequal lengths and unequal shares of targets, functions of the row number.
class UnevenRows : public RowSource {
 public:
  UnevenRows(int64_t rows, int64_t vocabulary) : rows_(rows), vocabulary_(vocabulary) {}
  int64_t size() const override { return rows_; }
  std::vector<Document> row(int64_t index) const override;
  std::string content_hash() const override { return "uneven" + std::to_string(rows_); }

 private:
  int64_t rows_, vocabulary_;
};

/// A teacher whose answer a test can spoil at chosen calls (1, 2, ...).
class TestTeacher : public SelfTeacher {
 public:
  using SelfTeacher::SelfTeacher;
  at::Tensor hidden(const std::shared_ptr<const LocalBatch>& batch) override;
  std::function<void(int64_t call, at::Tensor& hidden)> spoil;

 private:
  int64_t calls_ = 0;
};

class TinyRun {
 public:
  explicit TinyRun(const std::string& name);
  ~TinyRun();
  const std::filesystem::path& folder() const { return folder_; }

  /// A fresh quantized decoder (and rows) for each call, as a new process would have it.
  std::unique_ptr<Decoder> decoder(const Config& config, at::ScalarType dtype) const;
  /// Our defaults for these tests (w4a16, 6 steps of 4 rows, a line each 2 steps) with overrides.
  Config config(const std::vector<std::string>& overrides = {}) const;
  TrainOutcome run(const Config& config, const std::filesystem::path& folder, at::ScalarType dtype = at::kFloat,
                   std::function<void(int64_t, at::Tensor&)> spoil = {}) const;
  TrainInputs inputs(Decoder& decoder, Teacher& teacher, const Config& config, const std::filesystem::path& folder) const;

  UnevenRows rows, validation;

 private:
  std::filesystem::path folder_;
  ModelConfig model_;
  std::unique_ptr<ModelWeights> weights_;
  Mesh mesh_;
  std::unique_ptr<Log> log_;
};

/// The tensors of a checkpoint of `run`.
std::map<std::string, at::Tensor> checkpoint_tensors(const std::filesystem::path& run, int64_t step);
/// The values that must be reproduced (no times, no memory) of metrics.jsonl, line by line.
std::vector<std::string> reproducible_metrics(const std::filesystem::path& run);
/// Number of tensors that differ in any bit, missing ones included.
int64_t count_differences(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b);

}  // namespace scalewright
