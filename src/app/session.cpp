#include "app/session.h"

#include "base/error.h"
#include "text/rows.h"
#include "text/worker.h"
#include "train/calibration.h"
#include "train/init_scales.h"

namespace scalewright {

namespace {

/// 0 .. count-1.
std::vector<int64_t> first_rows(int64_t count) {
  std::vector<int64_t> rows(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) rows[static_cast<std::size_t>(i)] = i;
  return rows;
}

std::unique_ptr<RowSource> open_files(const Session& session, const std::vector<std::string>& files, Log& log) {
  return open_rows(session.model_folder, files, session.config.data, session.run / "data", session.model.vocabulary, log,
                   static_cast<std::uint64_t>(session.config.train.seed));
}

std::string tokenizer_hash_or_empty(const std::filesystem::path& folder) {
  try {
    return tokenizer_files_hash(folder);
  } catch (const DataError&) {
    return {};
  }
}

}  // namespace

Session open_session(const Config& config) {
  if (config.model.path.empty()) throw UserError("model.path is missing\nhint: model: {path: FOLDER} in the configuration, the Hugging Face folder of the BF16 model");
  if (config.output.path.empty()) throw UserError("output.path is missing\nhint: output: {path: FOLDER} in the configuration, where the run is written");
  Session session;
  session.config = config;
  session.run = config.output.path;
  session.model_folder = resolve_model_folder(config.model.path);
  session.model = read_model_config(session.model_folder);
  session.weights = std::make_unique<ModelWeights>(session.model_folder, session.model);
  session.plan = make_quant_plan(config.quantize, config.train.act_scales, projections(session.model));
  return session;
}

void check_inputs(const Session& session) {
  std::vector<std::string> files = session.config.data.train;
  files.insert(files.end(), session.config.data.validation.begin(), session.config.data.validation.end());
  for (const std::string& file : {session.config.quantize.calibration, session.config.quantize.init_scales})
    if (!file.empty()) files.push_back(file);
  for (const std::string& file : files)
    if (!std::filesystem::exists(file)) throw DataError(fmt::format("{}: no such file or folder", file));
}

SessionRows open_session_rows(const Session& session, Log& log) {
  const DataSection& data = session.config.data;
  SessionRows rows;
  std::unique_ptr<RowSource> train = open_files(session, data.train, log);
  if (!data.validation.empty()) {
    std::shared_ptr<const RowSource> all = open_files(session, data.validation, log);
    rows.train = std::move(train);
    if (const int64_t count = std::min(all->size(), data.validation_rows); count > 0) rows.validation = subset_rows(all, first_rows(count));
    return rows;
  }
  const auto [kept, held] = split_rows(train->size(), data.validation_fraction, data.validation_rows, static_cast<std::uint64_t>(session.config.train.seed));
  if (held.empty()) {
    rows.train = std::move(train);
    return rows;
  }
  const std::shared_ptr<const RowSource> all = std::move(train);
  rows.train = subset_rows(all, kept);
  rows.validation = subset_rows(all, held);
  return rows;
}

RunIdentity session_identity(const Session& session, const SessionRows& rows, const Compute& compute) {
  RunIdentity identity;
  identity.model = session.weights->content_hash();
  identity.data = rows.train->content_hash();
  identity.validation = rows.validation ? rows.validation->content_hash() : std::string();
  identity.tokenizer = tokenizer_hash_or_empty(session.model_folder);
  identity.dtype = toString(compute.dtype);
  return identity;
}

std::unique_ptr<Decoder> open_session_decoder(const Session& session, const Context& context, const RowSource& rows, bool resumed) {
  auto decoder = std::make_unique<Decoder>(session.model, *session.weights, context.compute, context.mesh, column_unit(session.plan));
  decoder->quantize(session.plan);
  if (resumed) return decoder;
  const QuantizeSection& quantize = session.config.quantize;
  if (!quantize.init_scales.empty()) {
    decoder->load_quantizer_state(read_scales(quantize.init_scales), quantize.init_scales);
    context.log.info("scales start from {}", quantize.init_scales);
    return decoder;
  }
  if (!decoder->needs_calibration()) return decoder;
  std::unique_ptr<RowSource> own;
  if (!quantize.calibration.empty()) own = open_files(session, {quantize.calibration}, context.log);
  const RowSource& source = own ? *own : rows;
  context.log.info("calibrating activation scales on {} rows of {}", std::min(source.size(), quantize.calibration_rows),
                   own ? quantize.calibration : std::string("the training data"));
  calibrate(*decoder, source, quantize.calibration_rows, session.config.train.micro_batch);
  return decoder;
}

}  // namespace scalewright
