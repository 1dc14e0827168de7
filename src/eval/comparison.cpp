#include "eval/comparison.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace scalewright {

namespace {

/// Questions are the same when their hashes agree; files without hashes are trusted to hold the same if they hold as many.
bool same_questions(const TaskScore& a, const TaskScore& b) {
  if (a.n() != b.n()) return false;
  return a.hash.empty() || b.hash.empty() || a.hash == b.hash;
}

bool is_binary(const std::vector<double>& items) {
  return std::all_of(items.begin(), items.end(), [](double item) { return item == 0 || item == 1; });
}

TaskComparison compare_task(const TaskScore& baseline, const TaskScore& candidate) {
  TaskComparison out;
  out.task = baseline.name;
  out.n = candidate.n();
  out.baseline = baseline.accuracy();
  out.candidate = candidate.accuracy();
  out.paired = same_questions(baseline, candidate);
  if (out.paired) {
    out.difference = paired_difference(baseline.items, candidate.items);
    if (is_binary(baseline.items) && is_binary(candidate.items)) out.mcnemar_p = mcnemar_exact(baseline.items, candidate.items);
  } else {
    out.difference = unpaired_difference({out.baseline, baseline.standard_error()}, {out.candidate, candidate.standard_error()});
  }
  out.change = judge(out.difference);
  return out;
}

OrderedJson optional_json(const std::optional<double>& value) { return value ? OrderedJson(*value) : OrderedJson(nullptr); }

OrderedJson difference_json(double baseline, double candidate, const Estimate& difference, Change change) {
  OrderedJson json;
  json["baseline"] = baseline;
  json["candidate"] = candidate;
  json["difference"] = difference.value;
  json["stderr"] = difference.stderr_;
  json["verdict"] = change_name(change);
  return json;
}

OrderedJson comparison_json(const Comparison& comparison) {
  OrderedJson json;
  json["name"] = comparison.name;
  json["tasks"] = OrderedJson::object();
  for (const TaskComparison& task : comparison.tasks) {
    OrderedJson entry = difference_json(task.baseline, task.candidate, task.difference, task.change);
    entry["n"] = task.n;
    entry["paired"] = task.paired;
    entry["mcnemar_p"] = optional_json(task.mcnemar_p);
    json["tasks"][task.task] = std::move(entry);
  }
  json["missing_tasks"] = comparison.missing;
  json["average"] = difference_json(comparison.baseline_average, comparison.candidate_average, comparison.average, comparison.change);
  if (comparison.divergence) {
    json["fkl"]["mean"] = comparison.divergence->fkl;
    json["fkl"]["stderr"] = comparison.divergence->fkl_stderr;
    json["top1_agreement"] = comparison.divergence->top1_agreement;
  }
  json["perplexity"] = optional_json(comparison.perplexity);
  json["recovered"] = optional_json(comparison.recovered);
  return json;
}

std::string row(const std::string& name, double baseline, double candidate, const Estimate& difference, const std::string& p, const std::string& verdict) {
  return fmt::format("{:<16} {:>9.4f} {:>9.4f} {:>+9.4f} {:>8.4f} {:>9}  {}\n", name, baseline, candidate, difference.value, difference.stderr_, p, verdict);
}

}  // namespace

Comparison compare_scores(const std::string& baseline_name, const Scores& baseline, const std::string& name, const Scores& candidate) {
  Comparison out;
  out.name = name;
  out.baseline = baseline_name;
  std::vector<Estimate> differences;
  for (const TaskScore& task : baseline.tasks) {
    const TaskScore* other = candidate.find(task.name);
    if (!other) {
      out.missing.push_back(task.name);
      continue;
    }
    out.tasks.push_back(compare_task(task, *other));
    differences.push_back(out.tasks.back().difference);
    out.baseline_average += out.tasks.back().baseline;
    out.candidate_average += out.tasks.back().candidate;
  }
  for (const TaskScore& task : candidate.tasks)
    if (!baseline.find(task.name)) out.missing.push_back(task.name);
  if (out.tasks.empty())
    throw DataError(fmt::format("{} and {} have no task in common\nhint: evaluate both with the same --tasks", baseline_name, name));
  out.baseline_average /= static_cast<double>(out.tasks.size());
  out.candidate_average /= static_cast<double>(out.tasks.size());
  out.average = average(differences);
  out.change = judge(out.average);
  out.baseline_divergence = baseline.divergence;
  out.divergence = candidate.divergence;
  out.baseline_perplexity = baseline.perplexity;
  out.perplexity = candidate.perplexity;
  return out;
}

std::vector<Comparison> compare_all(const std::vector<std::string>& names, const std::vector<Scores>& scores) {
  SW_CHECK(scores.size() >= 2 && names.size() == scores.size(), "{} names, {} scores", names.size(), scores.size());
  std::vector<Comparison> out;
  for (std::size_t i = 1; i < scores.size(); ++i) {
    out.push_back(compare_scores(names[0], scores[0], names[i], scores[i]));
    // Over the same tasks only: the share of a loss on other questions would mean nothing.
    if (i > 1 && out[i - 1].missing.empty() && out[0].missing.empty()) {
      const double share = recovered_share(out[0].baseline_average, out[0].candidate_average, out[i - 1].candidate_average);
      if (std::isfinite(share)) out[i - 1].recovered = share;
    }
  }
  return out;
}

std::vector<std::string> failed_gates(const std::vector<Comparison>& comparisons, double max_drop) {
  // Accuracies are ratios of small integers in float64: a drop of exactly max_drop must pass whatever its last bits.
  const double most = max_drop + 1e-12;
  std::vector<std::string> failed;
  for (const Comparison& comparison : comparisons) {
    for (const TaskComparison& task : comparison.tasks)
      if (!(-task.difference.value <= most))
        failed.push_back(fmt::format("{}: {} drops by {:.4f}, more than {}", comparison.name, task.task, -task.difference.value, max_drop));
    if (!(-comparison.average.value <= most))
      failed.push_back(fmt::format("{}: the average drops by {:.4f}, more than {}", comparison.name, -comparison.average.value, max_drop));
    for (const std::string& task : comparison.missing)
      failed.push_back(fmt::format("{}: only one of the two has the task {}", comparison.name, task));
  }
  return failed;
}

OrderedJson to_json(const std::vector<Comparison>& comparisons) {
  OrderedJson json;
  json["baseline"] = comparisons.empty() ? "" : comparisons[0].baseline;
  json["candidates"] = OrderedJson::array();
  for (const Comparison& comparison : comparisons) json["candidates"].push_back(comparison_json(comparison));
  return json;
}

std::string format_table(const std::vector<Comparison>& comparisons) {
  std::string out;
  for (const Comparison& comparison : comparisons) {
    out += fmt::format("{} against {}\n", comparison.name, comparison.baseline);
    out += fmt::format("{:<16} {:>9} {:>9} {:>9} {:>8} {:>9}  {}\n", "task", "baseline", "candidate", "change", "SE", "McNemar p", "verdict (noise = 2 SE)");
    for (const TaskComparison& task : comparison.tasks)
      out += row(task.task, task.baseline, task.candidate, task.difference, task.mcnemar_p ? fmt::format("{:.4f}", *task.mcnemar_p) : "-",
                 std::string(change_name(task.change)) + (task.paired ? "" : " (other questions: unpaired)"));
    out += row("average", comparison.baseline_average, comparison.candidate_average, comparison.average, "-", std::string(change_name(comparison.change)));
    if (!comparison.missing.empty()) out += fmt::format("left out (only one of the two has them): {}\n", fmt::join(comparison.missing, ", "));
    if (const auto& d = comparison.divergence)
      out += fmt::format("divergence: fkl {:.5f} (SE {:.5f}), top-1 agreement {:.4f}, {} tokens\n", d->fkl, d->fkl_stderr, d->top1_agreement, d->tokens);
    if (comparison.perplexity && comparison.baseline_perplexity)
      out += fmt::format("perplexity: {:.4f}, baseline {:.4f}\n", *comparison.perplexity, *comparison.baseline_perplexity);
    if (comparison.recovered)
      out += fmt::format("recovered: {:.1f}% of what {} lost against {}\n", 100 * *comparison.recovered, comparisons[0].name, comparison.baseline);
    out += "\n";
  }
  return out;
}

}  // namespace scalewright
