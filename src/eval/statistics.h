// Statistics of per-question results: pure functions of numbers. A standard error that cannot be estimated (fewer than two
// values) is NaN, never zero: zero would claim certainty.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace scalewright {

/// A number and the standard error of its estimate.
struct Estimate {
  double value = 0;
  double stderr_ = 0;
};

/// Arithmetic mean; NaN for no values.
double mean(std::span<const double> values);

/// Standard error of the mean: sd / sqrt(n), sd with n - 1 degrees of freedom; NaN for fewer than two values.
double standard_error(std::span<const double> values);

/// Mean of a quantity per token where the tokens of one question (cluster) are not independent: sum of all totals over the sum of
/// all counts, with the standard error of a ratio over G clusters,
///   sqrt(G/(G-1) * sum_g (total_g - mean*count_g)^2) / sum_g count_g   (Cochran, Sampling Techniques, 1977, section 6.3).
/// With one token a cluster it is the plain standard error. `totals` and `counts` have one entry a cluster.
Estimate clustered_mean(std::span<const double> totals, std::span<const double> counts);

/// candidate - baseline over the same questions: the mean of d_i = candidate_i - baseline_i and sd(d)/sqrt(n). Sizes must agree.
Estimate paired_difference(std::span<const double> baseline, std::span<const double> candidate);

/// candidate - baseline over different questions: standard errors add in squares.
Estimate unpaired_difference(const Estimate& baseline, const Estimate& candidate);

/// The mean of independent estimates (tasks): standard errors add in squares.
Estimate average(std::span<const Estimate> estimates);

/// Exact two-sided McNemar test on 0/1 results of the same questions: with b and c discordant pairs,
/// min(1, 2 * P(X <= min(b,c))), X ~ Binomial(b + c, 1/2). 1 when nothing differs.
double mcnemar_exact(std::span<const double> baseline, std::span<const double> candidate);

/// The share of the loss from `reference` to `damaged` that `repaired` wins back: (repaired - damaged)/(reference - damaged);
/// NaN when nothing was lost or there was no difference.
double recovered_share(double reference, double damaged, double repaired);

enum class Change { kBetter, kWorse, kWithinNoise };

/// Run noise is two standard errors: a difference beyond it is better or worse. Without a standard error (NaN) nothing is beyond.
Change judge(const Estimate& difference);
/// "better", "worse", "within noise".
std::string_view change_name(Change change);

}  // namespace scalewright
