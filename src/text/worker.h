// The client of the Python text worker (python/scalewright/text_worker.py): the model's own tokenizer and chat template, run by
// transformers in another process. Requests and answers are JSON lines over pipes.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"

namespace scalewright {

/// One sample as tokens.
struct EncodedSample {
  std::vector<int32_t> ids;
  std::vector<std::uint8_t> is_target;
  bool truncated = false;
  std::string error;            // not empty: why the line was not usable
};

struct EncodeOptions {
  std::string format = "auto";       // auto, sharegpt, hy_v3, text
  std::string loss_on = "assistant"; // assistant, all
  int64_t seq_len = 2048;
};

/// Hash of the tokenizer and template files of a folder: the identity of the text side (no worker is started). Throws DataError when the
/// folder has no tokenizer.
std::string tokenizer_files_hash(const std::filesystem::path& model_folder);

/// Not thread-safe; start one a thread. The interpreter is $SCALEWRIGHT_PYTHON, else python3. Throws DataError with the worker's
/// own message (no tokenizer in the folder, a template that fails, ...), or when the worker dies or answers nothing for long.
class TextWorker {
 public:
  /// timeout_s: how long an answer may take.
  explicit TextWorker(const std::filesystem::path& model_folder, double timeout_s = 300);
  ~TextWorker();

  /// Raw lines of a data file (JSON objects, or plain text for format text) to tokens.
  std::vector<EncodedSample> encode_lines(const std::vector<std::string>& lines, const EncodeOptions& options);
  /// Prompts of a task: a list of messages (rendered with the generation prompt) or a plain string.
  std::vector<std::vector<int32_t>> encode_prompts(const std::vector<Json>& prompts);
  /// Plain text without special tokens (answers, choices).
  std::vector<std::vector<int32_t>> encode_text(const std::vector<std::string>& texts);
  /// Tokens to text, special tokens skipped.
  std::vector<std::string> decode(const std::vector<std::vector<int32_t>>& ids);
  /// tokenizer_files_hash of the folder.
  std::string tokenizer_hash();

 private:
  Json request(const Json& document);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace scalewright
