#include "text/worker.h"

#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "base/hash.h"
#include "store/files.h"
#include "text/worker_process.h"

namespace scalewright {
namespace {

// A request holds at most so much, so that the memory of both sides and the time of one answer are bounded.
constexpr std::size_t kRequestLines = 256;
constexpr std::size_t kRequestBytes = std::size_t{8} << 20;

// Any of these makes a folder one with a tokenizer.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json"};
// What else shapes the text side.
constexpr const char* kTextFiles[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
                                      "chat_template.jinja", "chat_template.json"};

/// Where the Python package lies beside the program: in the checkout, from build/ or build/tests/, or installed.
std::filesystem::path bundled_python() {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* relative : {"../python", "../../python", "../share/scalewright/python"})
    if (std::filesystem::exists(here / relative / "scalewright" / "text_worker.py", error)) return (here / relative).lexically_normal();
  return {};
}

/// Our environment, with the bundled package at the end of PYTHONPATH.
std::vector<std::string> worker_environment() {
  std::vector<std::string> result;
  std::string python_path;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    if (line.starts_with("PYTHONPATH=")) python_path = line.substr(11);
    else result.emplace_back(line);
  }
  if (const std::filesystem::path bundled = bundled_python(); !bundled.empty()) python_path += (python_path.empty() ? "" : ":") + bundled.string();
  if (!python_path.empty()) result.push_back("PYTHONPATH=" + python_path);
  return result;
}

std::vector<std::string> worker_command(const std::filesystem::path& model_folder) {
  const char* chosen = std::getenv("SCALEWRIGHT_PYTHON");
  return {chosen != nullptr && *chosen != '\0' ? chosen : "python3", "-m", "scalewright.text_worker", model_folder.string()};
}

bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();  // the library's own check, by throwing
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

EncodedSample sample_of(const Json& answer) {
  EncodedSample sample;
  if (const auto error = answer.find("error"); error != answer.end()) {
    sample.error = error->get<std::string>();
    return sample;
  }
  sample.ids = answer.at("ids").get<std::vector<std::int32_t>>();
  sample.is_target.assign(sample.ids.size(), 0);
  for (const Json& span : answer.at("spans"))
    for (std::size_t i = span.at(0).get<std::size_t>(); i < span.at(1).get<std::size_t>(); ++i) sample.is_target.at(i) = 1;
  sample.truncated = answer.at("truncated").get<bool>();
  return sample;
}

}  // namespace

std::string tokenizer_files_hash(const std::filesystem::path& model_folder) {
  Hasher hasher;
  bool found = false;
  const auto add = [&](const char* name) {
    if (!std::filesystem::is_regular_file(model_folder / name)) return false;
    hasher.update(fmt::format("{}:{}\n", name, hash_file(model_folder / name)));
    return true;
  };
  for (const char* name : kTokenizerFiles) found |= add(name);
  if (!found)
    throw DataError(fmt::format("no tokenizer in {} (expected tokenizer.json, or tokenizer.model, or vocab.json with merges.txt)\n"
                                "hint: copy the tokenizer files of the original model into this folder, or give data that is tokenized already",
                                model_folder.string()));
  for (const char* name : kTextFiles) add(name);
  return hasher.hex();
}

struct TextWorker::State {
  std::filesystem::path folder;
  std::string tokenizer_hash;   // also the check that there is a tokenizer, before a process is started
  WorkerProcess process;

  State(const std::filesystem::path& model_folder, double timeout_s)
      : folder(model_folder),
        tokenizer_hash(tokenizer_files_hash(model_folder)),
        process(worker_command(model_folder), worker_environment(), timeout_s) {}

  /// Sends a request (an empty line: none) and reads an answer; an error of the worker becomes ours.
  Json ask(const std::string& line) {
    const std::string answer = process.exchange(line);
    // The worker is ours, but one of its libraries might print: what is no JSON object is reported as it came.
    Json document = Json::parse(answer, nullptr, /*allow_exceptions=*/false);
    if (!document.is_object()) throw DataError(fmt::format("the text worker answered what is not JSON: {}", answer.substr(0, 200)));
    if (const auto error = document.find("error"); error != document.end())
      throw DataError(fmt::format("{}: {}", folder.string(), error->get<std::string>()));
    return document;
  }
};

TextWorker::TextWorker(const std::filesystem::path& model_folder, double timeout_s)
    : state_(std::make_unique<State>(model_folder, timeout_s)) {
  try {
    state_->ask("");
  } catch (const DataError& error) {
    const std::string what = error.what();
    if (what.find("No module named") == std::string::npos) throw;
    throw DataError(what + "\nhint: set SCALEWRIGHT_PYTHON to a Python that has transformers and jinja2 (./run sets it to the project's own)");
  }
}

TextWorker::~TextWorker() = default;

Json TextWorker::request(const Json& document) { return state_->ask(document.dump()); }

std::vector<EncodedSample> TextWorker::encode_lines(const std::vector<std::string>& lines, const EncodeOptions& options) {
  std::vector<EncodedSample> samples(lines.size());
  std::vector<std::size_t> sent;
  Json texts = Json::array();
  std::size_t bytes = 0;
  const auto flush = [&] {
    if (sent.empty()) return;
    const Json answer = request({{"op", "encode"}, {"lines", std::move(texts)}, {"format", options.format}, {"loss_on", options.loss_on}, {"seq_len", options.seq_len}});
    const Json& answers = answer.at("samples");
    SW_CHECK(answers.size() == sent.size(), "{} answers to {} lines", answers.size(), sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) samples[sent[i]] = sample_of(answers[i]);
    texts = Json::array();
    sent.clear();
    bytes = 0;
  };
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!is_utf8(lines[i])) {
      samples[i].error = "not UTF-8";
      continue;
    }
    if (sent.size() >= kRequestLines || bytes + lines[i].size() > kRequestBytes) flush();
    texts.push_back(lines[i]);
    bytes += lines[i].size();
    sent.push_back(i);
  }
  flush();
  return samples;
}

std::vector<std::vector<std::int32_t>> TextWorker::encode_prompts(const std::vector<Json>& prompts) {
  return request({{"op", "prompts"}, {"prompts", prompts}}).at("ids").get<std::vector<std::vector<std::int32_t>>>();
}

std::vector<std::vector<std::int32_t>> TextWorker::encode_text(const std::vector<std::string>& texts) {
  return request({{"op", "text"}, {"texts", texts}}).at("ids").get<std::vector<std::vector<std::int32_t>>>();
}

std::vector<std::string> TextWorker::decode(const std::vector<std::vector<std::int32_t>>& ids) {
  return request({{"op", "decode"}, {"ids", ids}}).at("texts").get<std::vector<std::string>>();
}

std::string TextWorker::tokenizer_hash() { return state_->tokenizer_hash; }

}  // namespace scalewright
