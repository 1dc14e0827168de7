// A sum that does not depend on the order of its terms.
#pragma once
#include <cmath>
#include <vector>

namespace scalewright {

/// The exact sum of float64 terms, rounded once when it is read. Held as an expansion of non-overlapping parts (Shewchuk, "Adaptive
/// precision floating-point arithmetic", 1997), so any grouping and order of the same terms gives the same bits. A term that is not
/// finite makes the sum not finite.
class ExactSum {
 public:
  ExactSum() = default;
  ExactSum(double x) { *this += x; }   // implicit: a sum of one term

  ExactSum& operator+=(double x) {
    if (!std::isfinite(x)) {
      special_ += x;
      return *this;
    }
    std::size_t kept = 0;
    for (double part : parts_) {
      if (std::fabs(x) < std::fabs(part)) std::swap(x, part);
      const double high = x + part, low = part - (high - x);
      if (low != 0) parts_[kept++] = low;
      x = high;
    }
    parts_.resize(kept);
    if (x != 0) parts_.push_back(x);
    return *this;
  }
  ExactSum& operator+=(const ExactSum& other) {
    const std::vector<double> parts = other.parts_;   // other may be this
    for (const double part : parts) *this += part;
    special_ += other.special_;
    return *this;
  }

  /// Terms that add up to the same sum, smallest first, for another process.
  std::vector<double> parts() const {
    std::vector<double> all = parts_;
    if (special_ != 0) all.push_back(special_);   // true for NaN
    return all;
  }

  /// The nearest float64, ties to even.
  operator double() const {
    if (special_ != 0) return special_;
    std::size_t i = parts_.size();
    if (i == 0) return 0;
    double high = parts_[--i], low = 0;
    while (i > 0) {
      const double x = high, y = parts_[--i];
      high = x + y;
      low = y - (high - x);
      if (low != 0) break;
    }
    // Half way between two values, the rest decides.
    if (i > 0 && ((low < 0 && parts_[i - 1] < 0) || (low > 0 && parts_[i - 1] > 0))) {
      const double twice = low * 2, x = high + twice;
      if (twice == x - high) high = x;
    }
    return high;
  }

 private:
  std::vector<double> parts_;   // increasing magnitude, non-overlapping
  double special_ = 0;          // the sum of terms that are not finite
};

}  // namespace scalewright
