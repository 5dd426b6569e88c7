// Quantiles of the latest durations: a ring of the last ones, which is enough for "how long does it take
// now".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rekindle::functions {

// Not thread-safe.
class LatencySample {
 public:
  void Add(double seconds) {
    if (last_.size() < kKept) {
      last_.push_back(seconds);
    } else {
      last_[count_ % kKept] = seconds;
    }
    ++count_;
  }
  uint64_t count() const { return count_; }
  // 0 without any. `share`: 0.5 for the median.
  double Quantile(double share) const {
    if (last_.empty()) return 0;
    std::vector<double> sorted = last_;
    const auto at = static_cast<size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5);
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(at), sorted.end());
    return sorted[at];
  }

 private:
  static constexpr size_t kKept = 1000;
  std::vector<double> last_;
  uint64_t count_ = 0;
};

}  // namespace rekindle::functions
