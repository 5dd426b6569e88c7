// How often to take an image of a job. Pure: no clock. Not thread-safe.
//
// With an image that costs the job d seconds and failures every M seconds on average, the time lost to both
// is least when the interval is about sqrt(2 d M) (Young, CACM 17(9), 1974); with the terms of higher order
// sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d, for d < 2M (Daly, FGCS 22(3), 2006). Costs and failures
// are measured; until there are enough, M is mostly an assumption.
#pragma once

#include <cstdint>

namespace rekindle::supervise {

struct IntervalOptions {
  double fixed_seconds = 0;  // not 0: always this
  // Images may take this share of the job's time: d / interval is never above, whatever `most_seconds` says.
  // 0: no such bound.
  double overhead_budget = 0.01;
  double assumed_mtbf_seconds = 6 * 3600;  // before any failure was seen; weighs like one failure
  double least_seconds = 5, most_seconds = 3600;
};

struct IntervalState {
  double cost_seconds = 0;  // d: of one image to the job, a running mean of the last few
  uint32_t images = 0;
  uint32_t failures = 0;
  double run_seconds = 0;  // observed, in all lives
};

// Young's and Daly's optimum: how long the job runs between two images. 0 for images that cost nothing;
// `mtbf_seconds` > 0.
double OptimalIntervalSeconds(double cost_seconds, double mtbf_seconds);

class CheckpointInterval {
 public:
  explicit CheckpointInterval(const IntervalOptions& options, IntervalState state = {})
      : options_(options), state_(state) {}

  void OnImage(double cost_seconds);
  void OnFailure();
  void OnRun(double seconds);  // it ran for so long since the last call

  double Seconds() const;      // from one image to the next; before the first image was measured: soon
  double MtbfSeconds() const;  // mean time between failures
  const IntervalState& state() const { return state_; }

 private:
  const IntervalOptions options_;
  IntervalState state_;
};

}  // namespace rekindle::supervise
