// generate: answers of the BF16 model and of its quantized student, side by side.
#include "app/command.h"
#include "app/open_model.h"
#include "base/error.h"
#include "eval/generation.h"
#include "eval/prompt_rows.h"
#include "store/files.h"

namespace scalewright {

namespace {

struct Answer {
  std::string model;   // "bf16", or the format
  std::vector<std::string> texts;
  std::vector<Generated> generated;
};

class GenerateCommand : public Command {
 public:
  std::string name() const override { return "generate"; }
  std::string summary() const override { return "answers of BF16 and quantized models side by side"; }

  std::vector<Option> options() override {
    std::vector<Option> all = model_options(choice_);
    all.push_back({"--prompt", "a question (may be repeated); becomes a user message of the model's chat template", &prompts_});
    all.push_back({"--file", "file of questions: JSON lines with \"prompt\" (messages or text) when it ends in .jsonl, else one a line", &file_});
    all.push_back({"--plain", "texts are continued as they are, without the chat template", &plain_});
    all.push_back({"--max-new-tokens", "longest answer", &max_new_tokens_});
    all.push_back({"--temperature", "0: the most likely token", &temperature_});
    all.push_back({"--top-p", "sample from the most likely tokens that hold this probability", &top_p_});
    return all;
  }

  ExitCode run(Context& context) override;

 private:
  void check() const;
  std::vector<Json> read_prompts() const;
  Answer answer(const std::string& model, Decoder& decoder, Mode mode, const std::vector<Prompt>& prompts, TextWorker& text, const GenerationOptions& options) const;

  ModelChoice choice_;
  std::vector<std::string> prompts_;
  std::string file_;
  bool plain_ = false;
  int64_t max_new_tokens_ = 256;
  double temperature_ = 0, top_p_ = 1;
};

void GenerateCommand::check() const {
  if (prompts_.empty() == file_.empty()) throw UserError("generate: either --prompt or --file is needed");
  if (max_new_tokens_ < 1) throw UserError(fmt::format("--max-new-tokens {}: at least 1 is expected", max_new_tokens_));
  if (!(temperature_ >= 0 && temperature_ <= 100)) throw UserError(fmt::format("--temperature {}: from 0 to 100 is expected", temperature_));
  if (!(top_p_ > 0 && top_p_ <= 1)) throw UserError(fmt::format("--top-p {}: above 0, at most 1 is expected", top_p_));
}

std::vector<Json> GenerateCommand::read_prompts() const {
  const auto ask = [&](const std::string& text) { return plain_ ? Json(text) : Json::array({{{"role", "user"}, {"content", text}}}); };
  std::vector<Json> out;
  for (const std::string& text : prompts_) out.push_back(ask(text));
  if (file_.empty()) return out;
  const bool json_lines = std::filesystem::path(file_).extension() == ".jsonl";
  const std::string text = read_file(file_);
  std::size_t begin = 0;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (!json_lines) {
      out.push_back(ask(line));
      continue;
    }
    const std::string where = fmt::format("{}:{}", file_, number);
    const Json json = parse_json(line, where);
    if (!json.is_object()) throw DataError(where + ": an object with \"prompt\" is expected");
    if (!json.contains("prompt")) continue;   // the header of a task file
    const Json& prompt = json["prompt"];
    if (!prompt.is_string() && !prompt.is_array()) throw DataError(where + ": \"prompt\" is neither a text nor a list of messages");
    out.push_back(prompt.is_string() ? ask(prompt.get<std::string>()) : prompt);
  }
  if (out.empty()) throw DataError(fmt::format("{}: no prompt in it\nhint: one question a line, or JSON lines with \"prompt\" in a .jsonl file", file_));
  return out;
}

Answer GenerateCommand::answer(const std::string& model, Decoder& decoder, Mode mode, const std::vector<Prompt>& prompts, TextWorker& text,
                               const GenerationOptions& options) const {
  Answer out{.model = model, .texts = {}, .generated = generate(decoder, mode, prompts, options)};
  std::vector<std::vector<int32_t>> ids;
  for (const Generated& generated : out.generated) ids.push_back(generated.ids);
  out.texts = text.decode(ids);
  return out;
}

/// What was asked, for people: the text, or the last message.
std::string shown(const Json& prompt) {
  if (prompt.is_string()) return prompt.get<std::string>();
  const Json& last = prompt.empty() ? prompt : prompt.back();
  return last.is_object() && last.contains("content") && last["content"].is_string() ? last["content"].get<std::string>() : prompt.dump();
}

OrderedJson as_json(const std::vector<Json>& prompts, const std::vector<Answer>& answers) {
  OrderedJson out;
  out["answers"] = OrderedJson::array();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    OrderedJson entry;
    entry["prompt"] = OrderedJson::parse(prompts[i].dump());
    for (const Answer& answer : answers)
      entry[answer.model] = {{"text", answer.texts[i]}, {"tokens", answer.generated[i].ids.size()}, {"stopped", answer.generated[i].stopped}};
    out["answers"].push_back(std::move(entry));
  }
  return out;
}

void print_answers(const std::vector<Json>& prompts, const std::vector<Answer>& answers) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    fmt::print("{}\n", shown(prompts[i]));
    for (const Answer& answer : answers) fmt::print("  {:<10} {}{}\n", answer.model + ":", answer.texts[i], answer.generated[i].stopped ? "" : " ...");
  }
}

ExitCode GenerateCommand::run(Context& context) {
  check();
  const Config config = command_config(context.common);
  const ModelSource source(choice_, config);
  const std::vector<Json> asked = read_prompts();
  const auto text = source.open_text();
  if (!text) throw DataError(fmt::format("{}: no tokenizer\nhint: put tokenizer.json and tokenizer_config.json into the model folder", source.folder().string()));
  const std::vector<std::vector<int32_t>> ids = text->encode_prompts(asked);
  if (context.common.dry_run) {
    return would(context, fmt::format("answer {} prompts with {} ({})", asked.size(), source.folder().string(), source.quantization()));
  }
  const auto decoder = source.open_decoder(context, *prompt_rows(ids));
  std::vector<Prompt> prompts;
  for (const auto& prompt : ids) prompts.push_back({prompt, prompts.size()});
  GenerationOptions options;
  options.max_new_tokens = max_new_tokens_;
  options.temperature = temperature_;
  options.top_p = top_p_;
  options.seed = static_cast<std::uint64_t>(context.common.seed.value_or(0));
  std::vector<Answer> answers = {answer("bf16", *decoder, Mode::kTeacher, prompts, *text, options)};
  if (source.quantized()) answers.push_back(answer(source.quantization(), *decoder, Mode::kStudent, prompts, *text, options));
  if (context.common.json) print_json(as_json(asked, answers));
  else print_answers(asked, answers);
  return ExitCode::kOk;
}

}  // namespace

std::unique_ptr<Command> make_generate_command() { return std::make_unique<GenerateCommand>(); }

}  // namespace scalewright
