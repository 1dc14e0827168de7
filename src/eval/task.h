// Tasks: files of questions with known answers.
//
// A task file is JSON lines. An optional first line without "prompt" is a header:
//   {"task": name, "sampling": {"temperature": t, "top_p": p, "runs": r}, "max_new_tokens": n, "length_normalised": false}
// Every other line is a question, answered by generation (exact match) or by log-likelihood among choices:
//   {"prompt": P, "answer": A}       {"prompt": P, "choices": [A, ...], "answer": index}
// P is a list of messages (chat template), or a text, or a list of token ids; A is a text or a list of token ids. Further keys
// (id, source, ...) are ignored.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/worker.h"

namespace scalewright {

/// How answers are generated: temperature 0 is greedy; otherwise `runs` samples with seeds 0 .. runs-1.
struct Sampling {
  double temperature = 0;
  double top_p = 1;
  int64_t runs = 1;
};

struct Question {
  Json prompt;
  Json answer;                  // text or ids; choice questions: null
  std::vector<Json> choices;    // texts or ids; empty: answered by generation
  int64_t right = 0;            // index of the right choice
  std::string where;            // "file:line"
};

struct Task {
  std::string name;             // of the header, else the file's name without its extension
  Sampling sampling;
  std::optional<int64_t> max_new_tokens;
  bool length_normalised = false;   // choices are ranked by log-likelihood per token instead of its sum
  std::vector<Question> questions;
  std::string hash;             // of header and questions kept
};

/// Reads one file, or every *.jsonl of a folder by name; of each task the first `limit` questions (0: all). Throws DataError
/// "file:line: ..." for malformed lines, DataError when there is no file or a task has no question, or two tasks share a name.
std::vector<Task> read_tasks(const std::filesystem::path& path, int64_t limit);

/// A question as tokens.
struct TokenizedQuestion {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;                 // without stop token; empty for choices
  std::vector<std::vector<int32_t>> choices;
};

/// Whether every prompt and answer is given as token ids, so that no tokenizer is needed.
bool is_tokenized(const std::vector<Task>& tasks);

/// All questions of a task; prompt and answer are tokenized separately, so a text prompt's answer must bring its own leading
/// space. `text` may be nullptr when the task is given in token ids; otherwise DataError. Ids must be below `vocabulary`.
std::vector<TokenizedQuestion> tokenize(const Task& task, TextWorker* text, int64_t vocabulary);

}  // namespace scalewright
