#include "eval/statistics.h"

#include "base/error.h"

namespace scalewright {

namespace {

constexpr double kNoiseInStandardErrors = 2.0;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// log of the binomial coefficient: sums of many pairs stay in range.
double log_choose(int64_t n, int64_t k) { return std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0); }

}  // namespace

double mean(std::span<const double> values) {
  if (values.empty()) return kUnknown;
  double sum = 0;
  for (double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double standard_error(std::span<const double> values) {
  if (values.size() < 2) return kUnknown;
  const double center = mean(values);
  double squares = 0;
  for (double v : values) squares += (v - center) * (v - center);
  const double n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1) / n);
}

Estimate clustered_mean(std::span<const double> totals, std::span<const double> counts) {
  SW_CHECK(totals.size() == counts.size(), "{} totals, {} counts", totals.size(), counts.size());
  double total = 0, count = 0;
  for (std::size_t g = 0; g < totals.size(); ++g) {
    total += totals[g];
    count += counts[g];
  }
  if (count == 0) return {kUnknown, kUnknown};
  const double value = total / count;
  if (totals.size() < 2) return {value, kUnknown};
  double squares = 0;
  for (std::size_t g = 0; g < totals.size(); ++g) {
    const double residual = totals[g] - value * counts[g];
    squares += residual * residual;
  }
  const double clusters = static_cast<double>(totals.size());
  return {value, std::sqrt(clusters / (clusters - 1) * squares) / count};
}

Estimate paired_difference(std::span<const double> baseline, std::span<const double> candidate) {
  SW_CHECK(baseline.size() == candidate.size(), "{} and {} paired results", baseline.size(), candidate.size());
  std::vector<double> differences(baseline.size());
  for (std::size_t i = 0; i < differences.size(); ++i) differences[i] = candidate[i] - baseline[i];
  return {mean(differences), standard_error(differences)};
}

Estimate unpaired_difference(const Estimate& baseline, const Estimate& candidate) {
  return {candidate.value - baseline.value, std::hypot(baseline.stderr_, candidate.stderr_)};
}

Estimate average(std::span<const Estimate> estimates) {
  if (estimates.empty()) return {kUnknown, kUnknown};
  double sum = 0, squares = 0;
  for (const Estimate& e : estimates) {
    sum += e.value;
    squares += e.stderr_ * e.stderr_;
  }
  const double n = static_cast<double>(estimates.size());
  return {sum / n, std::sqrt(squares) / n};
}

double mcnemar_exact(std::span<const double> baseline, std::span<const double> candidate) {
  SW_CHECK(baseline.size() == candidate.size(), "{} and {} paired results", baseline.size(), candidate.size());
  int64_t lost = 0, won = 0;
  for (std::size_t i = 0; i < baseline.size(); ++i) {
    if (candidate[i] < baseline[i]) ++lost;
    if (candidate[i] > baseline[i]) ++won;
  }
  const int64_t pairs = lost + won;
  double tail = 0;
  for (int64_t k = 0; k <= std::min(lost, won); ++k) tail += std::exp(log_choose(pairs, k) - pairs * std::log(2.0));
  return std::min(1.0, 2.0 * tail);
}

double recovered_share(double reference, double damaged, double repaired) {
  if (reference == damaged) return kUnknown;
  return (repaired - damaged) / (reference - damaged);
}

Change judge(const Estimate& difference) {
  const double noise = kNoiseInStandardErrors * difference.stderr_;
  if (difference.value > noise) return Change::kBetter;
  if (difference.value < -noise) return Change::kWorse;
  return Change::kWithinNoise;
}

std::string_view change_name(Change change) {
  switch (change) {
    case Change::kBetter: return "better";
    case Change::kWorse: return "worse";
    case Change::kWithinNoise: return "within noise";
  }
  return "";
}

}  // namespace scalewright
