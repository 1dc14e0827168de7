// scores.json: what an evaluation found, per question so that two runs can be paired.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace scalewright {

struct TaskScore {
  std::string name;
  std::vector<double> items;      // per question in file order: 1 right, 0 wrong; the mean over runs when answers are sampled
  std::string kind = "generate";  // generate, choose (log-likelihood), mixed
  int64_t runs = 1;               // sampled runs a question
  double stopped = 1.0;           // share of generated answers that ended with a stop token
  std::string hash;               // identity of the questions; empty when unknown

  int64_t n() const { return static_cast<int64_t>(items.size()); }
  double correct() const;         // sum of items
  double accuracy() const;        // mean of items
  double standard_error() const;  // of the accuracy over questions; NaN for one question
};

/// Divergence from the reference model over the tokens of the right answers (with their stop tokens), teacher-forced.
struct Divergence {
  int64_t tokens = 0;
  double fkl = 0;                 // mean forward KL(reference || model), nats a token
  double fkl_stderr = 0;          // tokens of one question are not independent: clustered by question
  double top1_agreement = 1;      // share of tokens whose most likely token is the reference's
};

struct Scores {
  std::string model;              // the folder
  std::string quantization;       // "none", or the format and where its scales come from
  std::vector<TaskScore> tasks;   // by file name
  std::optional<Divergence> divergence;
  std::optional<double> perplexity;    // of the right answers: exp(mean negative log-likelihood a token)
  OrderedJson details = OrderedJson::object();  // further keys for the end of the file: identities of model and data, seed, options

  double average() const;         // mean of the tasks' accuracies
  const TaskScore* find(const std::string& task) const;
};

OrderedJson to_json(const Scores& scores);
/// Throws DataError beginning with `where` when a required key is missing or of another type, or n, items and correct disagree.
Scores scores_from_json(const OrderedJson& json, const std::string& where);

/// Atomic. Throws DiskError.
void write_scores(const std::filesystem::path& path, const Scores& scores);
/// Throws DataError naming the file.
Scores read_scores(const std::filesystem::path& path);

}  // namespace scalewright
