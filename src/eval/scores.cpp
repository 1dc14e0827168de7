#include "eval/scores.h"

#include "base/error.h"
#include "eval/statistics.h"
#include "store/files.h"

namespace scalewright {

namespace {

/// Items are 0 and 1 unless answers were sampled several times; whole numbers are written as such.
OrderedJson number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

OrderedJson task_json(const TaskScore& task) {
  OrderedJson json;
  json["n"] = task.n();
  json["correct"] = number(task.correct());
  json["accuracy"] = task.accuracy();
  json["stderr"] = task.standard_error();
  json["items"] = OrderedJson::array();
  for (double item : task.items) json["items"].push_back(number(item));
  json["kind"] = task.kind;
  json["runs"] = task.runs;
  json["stopped"] = task.stopped;
  if (!task.hash.empty()) json["hash"] = task.hash;
  return json;
}

/// A member of an object with its type checked; numbers may be null (a standard error that could not be estimated).
class Reader {
 public:
  Reader(const OrderedJson& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) fail("an object is expected");
  }
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const OrderedJson& member(const char* key) const {
    if (!json_.contains(key)) fail(fmt::format("the key \"{}\" is missing", key));
    return json_[key];
  }
  double real(const char* key) const {
    const OrderedJson& value = member(key);
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (!value.is_number()) fail(fmt::format("\"{}\" is not a number", key));
    return value.get<double>();
  }
  std::string text(const char* key) const {
    const OrderedJson& value = member(key);
    if (!value.is_string()) fail(fmt::format("\"{}\" is not a string", key));
    return value.get<std::string>();
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: {}\nhint: this should be a scores.json written by `scalewright eval`", where_, what));
  }

 private:
  const OrderedJson& json_;
  std::string where_;
};

TaskScore read_task(const std::string& name, const OrderedJson& json, const std::string& where) {
  const Reader reader(json, where + ": task \"" + name + "\"");
  TaskScore task;
  task.name = name;
  const OrderedJson& items = reader.member("items");
  if (!items.is_array() || items.empty()) reader.fail("\"items\" is not a list of results");
  for (const OrderedJson& item : items) {
    if (!item.is_number()) reader.fail("\"items\" holds something that is not a number");
    const double value = item.get<double>();
    if (!(value >= 0 && value <= 1)) reader.fail(fmt::format("\"items\" holds {}, which is not within 0 and 1", value));
    task.items.push_back(value);
  }
  if (reader.real("n") != static_cast<double>(task.n()))
    reader.fail(fmt::format("\"n\" is {}, but there are {} items", reader.real("n"), task.n()));
  if (std::abs(reader.real("correct") - task.correct()) > 1e-6)   // written with 17 digits: only rounding of a sum may differ
    reader.fail(fmt::format("\"correct\" is {}, but the items sum to {}", reader.real("correct"), task.correct()));
  if (reader.has("kind")) task.kind = reader.text("kind");
  if (reader.has("runs")) task.runs = static_cast<int64_t>(reader.real("runs"));
  if (reader.has("stopped")) task.stopped = reader.real("stopped");
  if (reader.has("hash")) task.hash = reader.text("hash");
  return task;
}

Divergence read_divergence(const OrderedJson& json, const std::string& where) {
  const Reader reader(json, where + ": divergence");
  const Reader fkl(reader.member("fkl"), where + ": divergence: fkl");
  Divergence divergence;
  divergence.tokens = static_cast<int64_t>(reader.real("tokens"));
  divergence.fkl = fkl.real("mean");
  divergence.fkl_stderr = fkl.real("stderr");
  divergence.top1_agreement = reader.real("top1_agreement");
  return divergence;
}

}  // namespace

double TaskScore::correct() const {
  double sum = 0;
  for (double item : items) sum += item;
  return sum;
}

double TaskScore::accuracy() const { return mean(items); }

double TaskScore::standard_error() const { return scalewright::standard_error(items); }

double Scores::average() const {
  std::vector<double> accuracies;
  for (const TaskScore& task : tasks) accuracies.push_back(task.accuracy());
  return mean(accuracies);
}

const TaskScore* Scores::find(const std::string& task) const {
  for (const TaskScore& candidate : tasks)
    if (candidate.name == task) return &candidate;
  return nullptr;
}

OrderedJson to_json(const Scores& scores) {
  OrderedJson json;
  json["model"] = scores.model;
  json["quantization"] = scores.quantization;
  json["tasks"] = OrderedJson::object();
  for (const TaskScore& task : scores.tasks) json["tasks"][task.name] = task_json(task);
  if (const auto& d = scores.divergence) {
    json["divergence"]["tokens"] = d->tokens;
    json["divergence"]["fkl"]["mean"] = d->fkl;
    json["divergence"]["fkl"]["stderr"] = d->fkl_stderr;
    json["divergence"]["top1_agreement"] = d->top1_agreement;
  }
  if (scores.perplexity) json["perplexity"] = *scores.perplexity;
  json["average"] = scores.average();
  for (const auto& [key, value] : scores.details.items()) json[key] = value;
  return json;
}

Scores scores_from_json(const OrderedJson& json, const std::string& where) {
  const Reader reader(json, where);
  Scores scores;
  scores.model = reader.text("model");
  scores.quantization = reader.text("quantization");
  const OrderedJson& tasks = reader.member("tasks");
  if (!tasks.is_object() || tasks.empty()) reader.fail("\"tasks\" is not an object with at least one task");
  for (const auto& [name, task] : tasks.items()) scores.tasks.push_back(read_task(name, task, where));
  if (reader.has("divergence")) scores.divergence = read_divergence(json["divergence"], where);
  if (reader.has("perplexity")) scores.perplexity = reader.real("perplexity");
  static constexpr std::array kOwn = {"model", "quantization", "tasks", "divergence", "perplexity", "average"};
  for (const auto& [key, value] : json.items())
    if (std::find(kOwn.begin(), kOwn.end(), key) == kOwn.end()) scores.details[key] = value;
  return scores;
}

void write_scores(const std::filesystem::path& path, const Scores& scores) { write_file_atomic(path, to_json(scores).dump(2) + "\n"); }

Scores read_scores(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  parse_json(text, path.string());   // duplicate keys, depth and UTF-8 are checked there
  return scores_from_json(OrderedJson::parse(text), path.string());
}

}  // namespace scalewright
