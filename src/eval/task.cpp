#include "eval/task.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/near.h"
#include "store/files.h"

namespace scalewright {

namespace {

constexpr const char* kQuestionForm =
    R"({"prompt": ..., "answer": "text"} or {"prompt": ..., "choices": ["text", ...], "answer": index})";

[[noreturn]] void fail(const std::string& where, const std::string& what, const std::string& hint = std::string("a question is ") + kQuestionForm) {
  throw DataError(fmt::format("{}: {}\nhint: {}", where, what, hint));
}

bool is_ids(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Json& id) { return id.is_number_integer() && id.get<int64_t>() >= 0; });
}

bool is_messages(const Json& value) {
  return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), [](const Json& message) {
           return message.is_object() && message.contains("role") && message.contains("content");
         });
}

double number(const Json& object, const char* key, double otherwise, double least, double most, const std::string& where) {
  if (!object.contains(key)) return otherwise;
  const Json& value = object[key];
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
    fail(where, fmt::format("\"{}\" is {}, a number from {} to {} is expected", key, value.dump(), least, most), "correct the header line");
  return value.get<double>();
}

int64_t integer(const Json& object, const char* key, int64_t otherwise, int64_t least, int64_t most, const std::string& where) {
  if (object.contains(key) && !object[key].is_number_integer())
    fail(where, fmt::format("\"{}\" is {}, an integer is expected", key, object[key].dump()), "correct the header line");
  return static_cast<int64_t>(number(object, key, static_cast<double>(otherwise), static_cast<double>(least), static_cast<double>(most), where));
}

void check_keys(const Json& object, const std::vector<std::string>& allowed, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(allowed.begin(), allowed.end(), key) != allowed.end()) continue;
    const auto near = nearest(key, allowed);
    fail(where, fmt::format("a line without \"prompt\" is a header, and \"{}\" is no key of one", key),
         near ? fmt::format("did you mean \"{}\"? Otherwise, a question is {}", *near, kQuestionForm)
              : fmt::format("header keys are {}; a question is {}", fmt::join(allowed, ", "), kQuestionForm));
  }
}

void read_header(const Json& header, const std::string& where, Task& task) {
  check_keys(header, {"task", "sampling", "max_new_tokens", "length_normalised"}, where);
  if (header.contains("task")) {
    if (!header["task"].is_string() || header["task"].get<std::string>().empty())
      fail(where, "\"task\" is not a name", "correct the header line");
    task.name = header["task"].get<std::string>();
  }
  if (header.contains("max_new_tokens")) task.max_new_tokens = integer(header, "max_new_tokens", 0, 1, 1 << 20, where);
  if (header.contains("length_normalised")) {
    if (!header["length_normalised"].is_boolean()) fail(where, "\"length_normalised\" is neither true nor false", "correct the header line");
    task.length_normalised = header["length_normalised"].get<bool>();
  }
  if (!header.contains("sampling")) return;
  const Json& sampling = header["sampling"];
  if (!sampling.is_object()) fail(where, "\"sampling\" is not an object", R"(for example {"temperature": 0.8, "top_p": 0.95, "runs": 4})");
  check_keys(sampling, {"temperature", "top_p", "runs"}, where);
  task.sampling.temperature = number(sampling, "temperature", 0, 0, 100, where);
  task.sampling.top_p = number(sampling, "top_p", 1, 1e-6, 1, where);
  task.sampling.runs = integer(sampling, "runs", 1, 1, 10000, where);
  if (task.sampling.temperature == 0 && task.sampling.runs > 1)
    fail(where, "several runs at temperature 0 would all be the same", "set a temperature, or runs: 1");
}

Question read_question(const Json& line, const std::string& where) {
  Question question;
  question.where = where;
  question.prompt = line["prompt"];
  if (!question.prompt.is_string() && !is_ids(question.prompt) && !is_messages(question.prompt))
    fail(where, "\"prompt\" is neither a list of messages with role and content, nor a text, nor a list of token ids");
  if (!line.contains("answer")) fail(where, "there is no \"answer\"");
  const Json& answer = line["answer"];
  if (!line.contains("choices")) {
    if (!answer.is_string() && !is_ids(answer)) fail(where, fmt::format("\"answer\" is {}, a text or a list of token ids is expected", answer.dump()));
    question.answer = answer;
    return question;
  }
  const Json& choices = line["choices"];
  if (!choices.is_array() || choices.size() < 2) fail(where, "\"choices\" is not a list of at least two choices");
  for (const Json& choice : choices) {
    const bool text = choice.is_string() && !choice.get_ref<const std::string&>().empty();
    if (!text && !is_ids(choice)) fail(where, fmt::format("the choice {} is neither a text nor a list of token ids", choice.dump()));
    question.choices.push_back(choice);
  }
  if (!answer.is_number_unsigned() || answer.get<std::size_t>() >= choices.size())
    fail(where, fmt::format("\"answer\" is {}, the index of a choice (0 to {}) is expected", answer.dump(), choices.size() - 1));
  question.right = answer.get<int64_t>();
  return question;
}

Task read_task(const std::filesystem::path& path, int64_t limit) {
  Task task;
  task.name = path.stem().string();
  Hasher hasher;
  const std::string text = read_file(path);
  std::size_t begin = 0;
  bool first = true;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (limit > 0 && static_cast<int64_t>(task.questions.size()) == limit) break;
    const std::string where = fmt::format("{}:{}", path.string(), number);
    const Json json = parse_json(line, where);
    if (!json.is_object()) fail(where, "the line is not a JSON object");
    if (json.contains("prompt")) {
      task.questions.push_back(read_question(json, where));
    } else if (first) {
      read_header(json, where, task);
    } else {
      fail(where, "there is no \"prompt\"");
    }
    first = false;
    hasher.update(json.dump() + "\n");
  }
  if (task.questions.empty()) fail(path.string(), "the file holds no question");
  task.hash = hasher.hex();
  return task;
}

std::vector<std::filesystem::path> task_files(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path))
    throw DataError(fmt::format("{}: no such task file or folder\nhint: a folder of *.jsonl files, or one file", path.string()));
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.is_regular_file() && entry.path().extension() == ".jsonl") files.push_back(entry.path());
  if (files.empty()) throw DataError(fmt::format("{}: the folder holds no *.jsonl file\nhint: one file a task, {} a line", path.string(), kQuestionForm));
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<int32_t> ids_of(const Json& ids, int64_t vocabulary, const std::string& where) {
  std::vector<int32_t> out;
  for (const Json& id : ids) {
    if (id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocabulary))
      fail(where, fmt::format("token id {} is not below the vocabulary size {}", id.dump(), vocabulary), "the ids belong to another model");
    out.push_back(id.get<int32_t>());
  }
  return out;
}

/// Texts waiting for one request to the worker, each with the place where its tokens go.
class Encoder {
 public:
  Encoder(TextWorker* text, int64_t vocabulary) : text_(text), vocabulary_(vocabulary) {}

  void prompt(const Json& value, std::vector<int32_t>& out, const std::string& where) {
    if (is_ids(value)) {
      out = ids_of(value, vocabulary_, where);
    } else {
      prompts_.push_back(value);
      prompt_targets_.push_back(&out);
    }
  }
  void answer(const Json& value, std::vector<int32_t>& out, const std::string& where) {
    if (is_ids(value)) {
      out = ids_of(value, vocabulary_, where);
    } else {
      texts_.push_back(value.get<std::string>());
      text_targets_.push_back(&out);
    }
  }
  void finish(const Task& task) {
    if (prompts_.empty() && texts_.empty()) return;
    if (!text_)
      throw DataError(fmt::format("task {}: its questions are text, but the model has no tokenizer\nhint: put tokenizer.json and "
                                  "tokenizer_config.json into the model folder, or give prompts and answers as lists of token ids", task.name));
    const auto prompts = text_->encode_prompts(prompts_);
    const auto texts = text_->encode_text(texts_);
    for (std::size_t i = 0; i < prompts.size(); ++i) *prompt_targets_[i] = prompts[i];
    for (std::size_t i = 0; i < texts.size(); ++i) *text_targets_[i] = texts[i];
  }

 private:
  TextWorker* text_;
  int64_t vocabulary_;
  std::vector<Json> prompts_;
  std::vector<std::string> texts_;
  std::vector<std::vector<int32_t>*> prompt_targets_, text_targets_;
};

}  // namespace

std::vector<Task> read_tasks(const std::filesystem::path& path, int64_t limit) {
  std::vector<Task> tasks;
  std::map<std::string, std::string> seen;
  for (const auto& file : task_files(path)) {
    tasks.push_back(read_task(file, limit));
    const auto [other, fresh] = seen.emplace(tasks.back().name, file.string());
    if (!fresh) throw DataError(fmt::format("{}: the task \"{}\" is also in {}\nhint: give them different names", file.string(), tasks.back().name, other->second));
  }
  return tasks;
}

bool is_tokenized(const std::vector<Task>& tasks) {
  for (const Task& task : tasks)
    for (const Question& question : task.questions) {
      if (!is_ids(question.prompt) || (question.choices.empty() && !is_ids(question.answer))) return false;
      if (!std::all_of(question.choices.begin(), question.choices.end(), is_ids)) return false;
    }
  return true;
}

std::vector<TokenizedQuestion> tokenize(const Task& task, TextWorker* text, int64_t vocabulary) {
  std::vector<TokenizedQuestion> out(task.questions.size());   // sized once: the encoder keeps pointers into it
  Encoder encoder(text, vocabulary);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Question& question = task.questions[i];
    encoder.prompt(question.prompt, out[i].prompt, question.where);
    out[i].choices.resize(question.choices.size());
    for (std::size_t c = 0; c < question.choices.size(); ++c) encoder.answer(question.choices[c], out[i].choices[c], question.where);
    if (question.choices.empty()) encoder.answer(question.answer, out[i].answer, question.where);
  }
  encoder.finish(task);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].prompt.empty()) fail(task.questions[i].where, "the prompt has no token");
    for (const auto& choice : out[i].choices)
      if (choice.empty()) fail(task.questions[i].where, "a choice has no token");
  }
  return out;
}

}  // namespace scalewright
