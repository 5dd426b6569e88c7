// How long somebody is waited for who usually answers soon: a few times as long as he usually takes, so that
// one who will never answer is found out early, and one on a busy machine is not given up.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace rekindle::restore {

// Thread-compatible.
class AnswerPatience {
 public:
  // Before anything is known of him, and the bounds afterwards: a machine may well stand still for a second.
  static constexpr absl::Duration kFirst = absl::Seconds(10), kLeast = absl::Seconds(2),
                                  kMost = absl::Seconds(30);

  absl::Duration Limit() const {
    if (usual_ == absl::ZeroDuration()) return kFirst;
    return std::clamp(kTimes * usual_, kLeast, kMost);
  }
  // He has answered after this time. What is usual follows a rise at once, a fall slowly.
  void Answered(absl::Duration took) {
    const absl::Duration positive = std::max(took, absl::Nanoseconds(1));
    usual_ = std::max(positive, (7 * usual_ + positive) / 8);
  }
  absl::Duration usual() const { return usual_; }  // zero: he has not answered yet

 private:
  static constexpr int kTimes = 10;
  absl::Duration usual_;
};

}  // namespace rekindle::restore
