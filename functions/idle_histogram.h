// How long a function usually lies idle between two invocations, and from that when the next one is due: the
// hybrid histogram policy of Shahrad et al., "Serverless in the Wild" (USENIX ATC 2020), section 4.2. As
// there: the time from the end of an invocation to the next arrival, bins of a minute, head and tail at the
// 5th and the 99th percentile with 10 % to spare. Otherwise: from 16 minutes on the bins grow (16 to an
// octave), which covers four days and needs no second model for what is out of bounds; and a histogram
// predicts when head and tail are close, because here what is not predicted is not lost but weighed by its
// rate.
//
// Pure, not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "functions/keep_alive_profile.h"

namespace rekindle::functions {

class IdleHistogram {
 public:
  struct Window {
    Micros open = 0, close = 0;  // since the function became idle
  };

  void Record(Micros idle);
  // When the next invocation is due, if that can be said.
  const std::optional<Window>& Predicted() const { return window_; }

 private:
  static constexpr int kLinear = 16, kPerOctave = 16, kBins = kLinear + 9 * kPerOctave;
  static constexpr uint32_t kMinSamples = 4, kMaxSamples = 64;

  static int BinOf(Micros idle);
  static Micros BinStart(int bin);
  void Predict();

  std::array<uint8_t, kBins> bins_{};
  uint32_t samples_ = 0, since_predicted_ = 0;
  std::optional<Window> window_;
};

}  // namespace rekindle::functions
