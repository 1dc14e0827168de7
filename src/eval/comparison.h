// Two or more scores.json side by side: differences over the same questions, their noise, verdicts.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "eval/scores.h"
#include "eval/statistics.h"

namespace scalewright {

/// One task of a candidate against the baseline.
struct TaskComparison {
  std::string task;
  int64_t n = 0;                      // questions of the candidate
  double baseline = 0, candidate = 0; // accuracies
  Estimate difference;                // candidate - baseline
  bool paired = true;                 // the same questions: per-question differences; else standard errors add in squares
  std::optional<double> mcnemar_p;    // paired 0/1 results only
  Change change = Change::kWithinNoise;
};

/// One candidate against the baseline.
struct Comparison {
  std::string name, baseline;         // as the caller calls the two
  std::vector<TaskComparison> tasks;  // of both, in the baseline's order
  std::vector<std::string> missing;   // tasks that only one of the two has: the average is over the others
  double baseline_average = 0, candidate_average = 0;   // over the common tasks
  Estimate average;                   // mean of the tasks' differences
  Change change = Change::kWithinNoise;
  std::optional<Divergence> baseline_divergence, divergence;
  std::optional<double> baseline_perplexity, perplexity;
  std::optional<double> recovered;    // share of what the first candidate lost that this one wins back
};

/// Throws DataError when no task is common to both.
Comparison compare_scores(const std::string& baseline_name, const Scores& baseline, const std::string& name, const Scores& candidate);

/// Each of `scores` from the second on against the first. From the third on also `recovered`: with the first as reference and the
/// second as the damaged model. Needs at least two.
std::vector<Comparison> compare_all(const std::vector<std::string>& names, const std::vector<Scores>& scores);

/// Why candidates fail the gate "no task, nor the average, is more than `max_drop` (a share, 0.01 = one point) below the baseline, and
/// both hold the same tasks"; empty: all pass.
std::vector<std::string> failed_gates(const std::vector<Comparison>& comparisons, double max_drop);

/// verdict.json without its gate: {"baseline": name, "candidates": [...]}.
OrderedJson to_json(const std::vector<Comparison>& comparisons);
/// The table for people.
std::string format_table(const std::vector<Comparison>& comparisons);

}  // namespace scalewright
