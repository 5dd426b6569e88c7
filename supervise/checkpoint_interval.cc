#include "supervise/checkpoint_interval.h"

#include <algorithm>
#include <cmath>

namespace rekindle::supervise {
namespace {

// The mean of the cost follows a job that grows: older images count less.
constexpr uint32_t kImagesRemembered = 8;

}  // namespace

double OptimalIntervalSeconds(double cost_seconds, double mtbf_seconds) {
  if (cost_seconds <= 0) return 0;
  if (cost_seconds >= 2 * mtbf_seconds) return mtbf_seconds;
  const double ratio = cost_seconds / (2 * mtbf_seconds);
  return std::sqrt(2 * cost_seconds * mtbf_seconds) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - cost_seconds;
}

void CheckpointInterval::OnImage(double cost_seconds) {
  ++state_.images;
  const double weight = 1.0 / std::min(state_.images, kImagesRemembered);
  state_.cost_seconds += (std::max(cost_seconds, 0.0) - state_.cost_seconds) * weight;
}

void CheckpointInterval::OnFailure() { ++state_.failures; }

void CheckpointInterval::OnRun(double seconds) { state_.run_seconds += std::max(seconds, 0.0); }

double CheckpointInterval::MtbfSeconds() const {
  return (options_.assumed_mtbf_seconds + state_.run_seconds) / (1.0 + state_.failures);
}

double CheckpointInterval::Seconds() const {
  if (options_.fixed_seconds > 0) return options_.fixed_seconds;
  if (state_.images == 0) return options_.least_seconds;
  const double best = OptimalIntervalSeconds(state_.cost_seconds, MtbfSeconds());
  const double bounded = std::max(options_.least_seconds, std::min(best, options_.most_seconds));
  // The budget is a promise, so it goes before `most_seconds`.
  if (options_.overhead_budget <= 0) return bounded;
  return std::max(bounded, state_.cost_seconds / options_.overhead_budget);
}

}  // namespace rekindle::supervise
