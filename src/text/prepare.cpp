#include "text/prepare.h"

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "store/files.h"
#include "text/dataset.h"
#include "text/line_reader.h"
#include "text/packer.h"
#include "text/token_shards.h"
#include "text/tokenize.h"

namespace scalewright {
namespace {

constexpr int64_t kPreparationVersion = 1;               // raised when the same input gives other rows
constexpr std::uint64_t kSampleSeed = 20240601;          // of the choice of max_samples lines; not a user's seed, so that data stay the same
constexpr std::size_t kBlockLines = 256;
constexpr std::size_t kBlockBytes = std::size_t{4} << 20;
constexpr std::size_t kBadExamples = 20;
constexpr int64_t kBytesPerWorker = int64_t{1} << 20;    // below it a worker's start-up costs more than it gains
constexpr double kProgressSeconds = 5;

/// A raw file, as it was when it was hashed.
struct Source {
  std::string path;
  std::int64_t bytes = 0;
  std::string hash;
};

std::vector<Source> scan_sources(const std::vector<std::string>& files) {
  if (files.empty()) throw UserError("no data files to prepare\nhint: --data FILE..., or data.train in the configuration");
  std::vector<Source> sources;
  for (const std::string& path : files) {
    const LineReader checks_that_it_opens(path);
    sources.push_back({path, static_cast<int64_t>(std::filesystem::file_size(path)), hash_file(path)});
  }
  return sources;
}

/// What the rows are a function of, as text; its hash is the key of reuse.
OrderedJson recipe(const std::vector<Source>& sources, const std::string& tokenizer_hash, const DataSection& options) {
  OrderedJson files = OrderedJson::array();
  for (const Source& source : sources) files.push_back({{"bytes", source.bytes}, {"hash", source.hash}, {"text", source.path.ends_with(".txt")}});
  return {{"version", kPreparationVersion},
          {"sources", files},
          {"tokenizer", tokenizer_hash},
          {"options",
           {{"format", options.format},
            {"seq_len", options.seq_len},
            {"loss_on", options.loss_on},
            {"packing", options.packing},
            {"max_samples", options.max_samples}}}};
}

/// Chooses exactly min(wanted, total) of `total` lines in one pass (Knuth, The Art of Computer Programming 2, algorithm S).
class LineSampler {
 public:
  LineSampler(int64_t wanted, int64_t total) : wanted_(wanted), total_(total), random_(kSampleSeed, 0) {}
  bool take_next() {
    if (wanted_ == 0) return true;
    const int64_t left = total_ - seen_, missing = wanted_ - taken_;
    const bool take = static_cast<int64_t>(random_.below(static_cast<std::uint64_t>(seen_), static_cast<std::uint64_t>(std::max<int64_t>(left, 1)))) < missing;
    ++seen_;
    taken_ += take;
    return take;
  }

 private:
  int64_t wanted_, total_, seen_ = 0, taken_ = 0;
  Philox random_;
};

int64_t count_lines(const std::vector<Source>& sources) {
  int64_t lines = 0;
  for (const Source& source : sources)
    for (LineReader reader(source.path); reader.next();) ++lines;
  return lines;
}

/// The files' lines in blocks.
class BlockSource {
 public:
  BlockSource(const std::vector<Source>& sources, const DataSection& options)
      : sources_(sources), options_(options), sampler_(options.max_samples, options.max_samples > 0 ? count_lines(sources) : 0) {}

  std::optional<LineBlock> next() {
    while (file_ < sources_.size()) {
      if (!reader_) reader_.emplace(sources_[file_].path);
      LineBlock block;
      block.file = file_;
      block.options = {sources_[file_].path.ends_with(".txt") && options_.format == "auto" ? "text" : options_.format, options_.loss_on, options_.seq_len};
      fill(block);
      if (!block.lines.empty()) return block;
      bytes_before_ += sources_[file_++].bytes;
      reader_.reset();
    }
    return std::nullopt;
  }

  int64_t bytes_read() const { return bytes_before_ + (reader_ ? reader_->bytes_read() : 0); }

 private:
  void fill(LineBlock& block) {
    std::size_t bytes = 0;
    while (block.lines.size() < kBlockLines && bytes < kBlockBytes && reader_->next()) {
      if (!sampler_.take_next()) continue;
      block.numbers.push_back(reader_->number());
      // A line that is too long goes on as an empty one, which no format accepts; its message is replaced below.
      block.lines.push_back(reader_->too_long() ? std::string() : reader_->line());
      bytes += block.lines.back().size();
    }
  }

  const std::vector<Source>& sources_;
  const DataSection& options_;
  LineSampler sampler_;
  std::size_t file_ = 0;
  std::optional<LineReader> reader_;
  int64_t bytes_before_ = 0;
};

/// Counts samples, names bad lines, and passes on what can be trained on.
class SampleSink {
 public:
  SampleSink(const std::vector<Source>& sources, PrepareReport& report, Packer& packer) : sources_(sources), report_(report), packer_(packer) {}

  void take(LineBlock block) {
    for (std::size_t i = 0; i < block.samples.size(); ++i) {
      ++report_.lines;
      EncodedSample& sample = block.samples[i];
      if (block.lines[i].empty()) sample.error = fmt::format("longer than {} MB", kMaxLineBytes >> 20);
      if (!sample.error.empty()) {
        name_bad(fmt::format("{}:{}: {}", sources_[block.file].path, block.numbers[i], sample.error));
        continue;
      }
      report_.truncated += sample.truncated;
      // The first token of a document is never predicted.
      if (std::find(sample.is_target.begin() + 1, sample.is_target.end(), 1) == sample.is_target.end()) {
        ++report_.without_target;
        continue;
      }
      packer_.add({std::move(sample.ids), std::move(sample.is_target), 0});
    }
  }

 private:
  void name_bad(std::string example) {
    ++report_.bad;
    if (report_.bad_examples.size() < kBadExamples) report_.bad_examples.push_back(std::move(example));
  }

  const std::vector<Source>& sources_;
  PrepareReport& report_;
  Packer& packer_;
};

/// A line of progress every few seconds.
class Progress {
 public:
  Progress(Log& log, int64_t total_bytes) : log_(log), total_bytes_(std::max<int64_t>(total_bytes, 1)), begin_(Clock::now()), last_(begin_) {}
  void update(int64_t bytes, int64_t lines, int64_t tokens) {
    const auto now = Clock::now();
    if (seconds(last_, now) < kProgressSeconds) return;
    last_ = now;
    const double elapsed = seconds(begin_, now), done = static_cast<double>(bytes) / static_cast<double>(total_bytes_);
    log_.info("preparing data: {:.0f}% | {} lines | {} tokens | {:.0f} tokens/s | eta {:.0f} s", 100 * done, lines, tokens, static_cast<double>(tokens) / elapsed,
              done > 0 ? elapsed * (1 - done) / done : 0.0);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }
  Log& log_;
  int64_t total_bytes_;
  Clock::time_point begin_, last_;
};

int64_t worker_count(int64_t wanted, int64_t bytes) {
  if (wanted > 0) return wanted;
  const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  return std::clamp<int64_t>((bytes + kBytesPerWorker - 1) / kBytesPerWorker, 1, cores);
}

[[noreturn]] void refuse_empty(const std::vector<Source>& sources, const PrepareReport& report) {
  std::string files, message, hint;
  for (const Source& source : sources) files += (files.empty() ? "" : ", ") + source.path;
  if (report.lines == 0) {
    message = fmt::format("{}: no data: every line is blank", files);
    hint = "one JSON object a line is expected, such as {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}";
  } else {
    message = fmt::format("{}: no usable sample: {} lines, {} of them malformed, {} without a token to learn", files, report.lines, report.bad, report.without_target);
    for (std::size_t i = 0; i < std::min<std::size_t>(report.bad_examples.size(), 3); ++i) message += "\n  " + report.bad_examples[i];
    hint = report.bad > 0 ? "one JSON object a line is expected, with messages, conversations, applied_message or text"
                          : "the loss covers assistant turns: is there one within data.seq_len tokens? data.loss_on=all learns every token";
  }
  throw DataError(message + "\nhint: " + hint);
}

OrderedJson counts_of(const PrepareReport& report) {
  return {{"lines", report.lines}, {"bad", report.bad}, {"truncated", report.truncated}, {"without_target", report.without_target}, {"bad_examples", report.bad_examples}};
}

PrepareReport report_of(const Json& manifest) {
  const Json& counts = manifest.at("report");
  PrepareReport report;
  report.lines = counts.at("lines");
  report.bad = counts.at("bad");
  report.truncated = counts.at("truncated");
  report.without_target = counts.at("without_target");
  report.bad_examples = counts.at("bad_examples").get<std::vector<std::string>>();
  report.rows = manifest.at("rows");
  report.documents = manifest.at("documents");
  report.tokens = manifest.at("tokens");
  report.target_tokens = manifest.at("target_tokens");
  report.content_hash = manifest.at("content_hash");
  return report;
}

/// The report of an earlier preparation at `out` with the same key whose shards are whole, or nothing.
std::optional<PrepareReport> reusable(const std::filesystem::path& out, const std::string& key, Log& log) {
  if (!is_token_shards(out)) return std::nullopt;
  try {
    const Json manifest = read_shards_manifest(out);
    if (manifest.value("key", Json()) != key) return std::nullopt;
    open_token_shards(out);
    return report_of(manifest);
  } catch (const DataError& error) {
    log.warning("prepared again, because the earlier preparation is damaged: {}", error.what());
  } catch (const Json::exception&) {
    log.warning("prepared again, because {}/manifest.json is damaged", out.string());
  }
  return std::nullopt;
}

void refuse_foreign_folder(const std::filesystem::path& out) {
  std::error_code error;
  if (!std::filesystem::exists(out, error) || is_token_shards(out)) return;
  if (std::filesystem::is_directory(out, error) && std::filesystem::is_empty(out, error)) return;
  throw UserError(fmt::format("{}: exists and holds something else than prepared data; it is left as it is\nhint: name a new folder", out.string()));
}

void log_report(const PrepareReport& report, Log& log) {
  for (const std::string& example : report.bad_examples) log.warning("bad line: {}", example);
  if (report.bad > static_cast<int64_t>(report.bad_examples.size())) log.warning("... and {} more bad lines", report.bad - static_cast<int64_t>(report.bad_examples.size()));
  log.info("prepared {} lines: {} rows, {} documents, {} tokens, {} of them targets; {} bad, {} truncated, {} without a target", report.lines, report.rows,
           report.documents, report.tokens, report.target_tokens, report.bad, report.truncated, report.without_target);
}

/// Tokenizes the sources into the folder `temporary`.
PrepareReport write_shards(const std::filesystem::path& model, const std::vector<Source>& sources, const DataSection& options, OrderedJson description,
                           const std::filesystem::path& temporary, Log& log) {
  PrepareReport report;
  TokenShardWriter writer(temporary);
  Packer packer(options.packing, options.seq_len, [&](const std::vector<Document>& row) { writer.add_row(row); });
  int64_t bytes = 0;
  for (const Source& source : sources) bytes += source.bytes;
  BlockSource blocks(sources, options);
  SampleSink sink(sources, report, packer);
  Progress progress(log, bytes);
  tokenize_blocks(model, worker_count(options.workers, bytes), [&] { return blocks.next(); }, [&](LineBlock block) {
    sink.take(std::move(block));
    progress.update(blocks.bytes_read(), report.lines, writer.tokens());
  });
  packer.finish();
  if (writer.rows() == 0) refuse_empty(sources, report);
  description["report"] = counts_of(report);
  report.content_hash = writer.finish(description);
  report.rows = writer.rows();
  report.documents = writer.documents();
  report.tokens = writer.tokens();
  report.target_tokens = writer.target_tokens();
  return report;
}

}  // namespace

PrepareReport prepare_data(const std::filesystem::path& model, const std::vector<std::string>& files, const DataSection& options,
                           const std::filesystem::path& out, Log& log) {
  const std::vector<Source> sources = scan_sources(files);
  OrderedJson description = recipe(sources, tokenizer_files_hash(model), options);
  const std::string key = hash_hex(description.dump());
  if (std::optional<PrepareReport> earlier = reusable(out, key, log)) {
    log.info("{}: prepared already with the same files, tokenizer and options", out.string());
    return *earlier;
  }
  refuse_foreign_folder(out);
  // Where the sources lay is said in the manifest, but is no part of what they are.
  for (std::size_t i = 0; i < sources.size(); ++i) description["sources"][i]["path"] = sources[i].path;
  description["key"] = key;
  PrepareReport report;
  publish_folder(out, [&](const std::filesystem::path& temporary) { report = write_shards(model, sources, options, description, temporary, log); });
  log_report(report, log);
  return report;
}

std::string preparation_key(const std::filesystem::path& model, const std::vector<std::string>& files, const DataSection& options) {
  return hash_hex(recipe(scan_sources(files), tokenizer_files_hash(model), options).dump());
}

}  // namespace scalewright
