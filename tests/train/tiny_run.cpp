#include "tiny_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>

#include "base/json.h"
#include "base/rng.h"
#include "store/checkpoint.h"
#include "store/files.h"

namespace scalewright {

std::vector<Document> UnevenRows::row(int64_t index) const {
  const Philox random(11, static_cast<std::uint64_t>(index));
  Document document;
  document.sample_index = index;
  const int64_t length = 5 + index % 7;
  for (int64_t i = 0; i < length; ++i) {
    document.ids.push_back(static_cast<int32_t>(random.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocabulary_))));
    document.is_target.push_back(i > index % 3);
  }
  return {document};
}

at::Tensor TestTeacher::hidden(const std::shared_ptr<const LocalBatch>& batch) {
  at::Tensor hidden = SelfTeacher::hidden(batch);
  ++calls_;
  if (spoil) spoil(calls_, hidden);
  return hidden;
}

namespace {

const std::filesystem::path kModel = std::filesystem::path(SCALEWRIGHT_TEST_DATA) / "reference/qwen3_moe";

}  // namespace

TinyRun::TinyRun(const std::string& name)
    : rows(16, 384), validation(5, 384), folder_(std::filesystem::path(testing::TempDir()) / fmt::format("train_{}_{}", getpid(), name)),
      model_(read_model_config(kModel)), weights_(std::make_unique<ModelWeights>(kModel, model_)), mesh_(Mesh::single({})),
      log_(std::make_unique<Log>(0, LogLevel::kError)) {
  at::set_num_threads(1);  // small tensors: waking threads costs more than the work
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
}

TinyRun::~TinyRun() { std::filesystem::remove_all(folder_); }

std::unique_ptr<Decoder> TinyRun::decoder(const Config& config, at::ScalarType dtype) const {
  Compute compute;
  compute.dtype = dtype;
  auto decoder = std::make_unique<Decoder>(model_, *weights_, compute, mesh_);
  decoder->quantize(make_quant_plan(config.quantize, config.train.act_scales, projections(model_)));
  return decoder;
}

Config TinyRun::config(const std::vector<std::string>& overrides) const {
  std::vector<std::string> all = {"quantize.format=w4a16", "train.steps=6",   "train.micro_batch=4", "train.lr=1e-2",
                                  "train.log_every=2",     "train.seed=3",    "train.loss.chunk=16", "train.save_every=0"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return default_config(all);
}

TrainInputs TinyRun::inputs(Decoder& decoder, Teacher& teacher, const Config& config, const std::filesystem::path& folder) const {
  return {decoder, teacher, rows, &validation, config, folder, mesh_, *log_, {"model", rows.content_hash(), validation.content_hash(), "", "float"}};
}

TrainOutcome TinyRun::run(const Config& config, const std::filesystem::path& folder, at::ScalarType dtype,
                          std::function<void(int64_t, at::Tensor&)> spoil) const {
  const auto own = decoder(config, dtype);
  TestTeacher teacher(*own);
  teacher.spoil = std::move(spoil);
  return train(inputs(*own, teacher, config, folder));
}

std::map<std::string, at::Tensor> checkpoint_tensors(const std::filesystem::path& run, int64_t step) {
  return load_checkpoint(checkpoint_path(run / "checkpoints", step)).tensors;
}

std::vector<std::string> reproducible_metrics(const std::filesystem::path& run) {
  std::vector<std::string> lines;
  std::istringstream file(read_file(run / "metrics.jsonl"));
  for (std::string line; std::getline(file, line);) {
    Json json = Json::parse(line);
    for (const char* key : {"elapsed", "eta", "memory", "tokens_per_second", "tflops"}) json.erase(key);
    lines.push_back(json.dump());
  }
  return lines;
}

int64_t count_differences(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  int64_t differences = 0;
  for (const auto& [name, tensor] : a) differences += !b.count(name) || !tensor.equal(b.at(name));
  for (const auto& [name, tensor] : b) differences += !a.count(name);
  return differences;
}

}  // namespace scalewright
