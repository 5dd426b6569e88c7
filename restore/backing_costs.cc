#include "restore/backing_costs.h"

#include <algorithm>

namespace rekindle::restore {
namespace {

// Both ways get this many blocks, in turn, before one is preferred.
constexpr uint64_t kFirstBlocks = 6;
constexpr double kWeightOfNew = 0.3;
// The dearer way is tried once in so many blocks for each time that it is as dear as the other: trials then
// cost a fixed share of the whole.
constexpr double kBlocksPerTrial = 24;
constexpr double kMostBlocksPerTrial = 256;
constexpr int kMostFailuresInARow = 8;

}  // namespace

void BackingCosts::Average::Add(double seconds_a_block, double part) {
  const double weight = kWeightOfNew * part;
  sum_ += weight * (seconds_a_block - sum_);
  weight_ += weight * (1 - weight_);
}

bool BackingCosts::Average::known() const { return weight_ >= kWeightOfNew / 2; }

double BackingCosts::HugeCost() const { return making_.value() + huge_copy_.value(); }

double BackingCosts::SmallCost() const { return small_copy_.value(); }

Backing BackingCosts::Next() {
  absl::MutexLock lock(&mutex_);
  if (failures_in_a_row_ >= kMostFailuresInARow) return Backing::kSmall;
  if (blocks_++ < kFirstBlocks || !small_copy_.known() || !making_.known() || !huge_copy_.known()) {
    return blocks_ % 2 == 1 ? Backing::kHuge : Backing::kSmall;
  }
  double huge = HugeCost(), small = SmallCost();
  Backing cheaper = huge <= small ? Backing::kHuge : Backing::kSmall;
  double times = std::max(huge, small) / std::max(std::min(huge, small), 1e-12);
  if (static_cast<double>(++since_trial_) < std::min(kBlocksPerTrial * times, kMostBlocksPerTrial))
    return cheaper;
  since_trial_ = 0;
  return cheaper == Backing::kHuge ? Backing::kSmall : Backing::kHuge;
}

void BackingCosts::Made(double seconds) {
  absl::MutexLock lock(&mutex_);
  making_.Add(seconds, 1);
  failures_in_a_row_ = 0;
}

void BackingCosts::NotMade() {
  absl::MutexLock lock(&mutex_);
  ++failures_in_a_row_;
}

void BackingCosts::Copied(Backing backing, size_t bytes, double seconds) {
  absl::MutexLock lock(&mutex_);
  const double part = static_cast<double>(bytes) / static_cast<double>(kHugePageBytes);
  (backing == Backing::kHuge ? huge_copy_ : small_copy_).Add(seconds / part, part);
}

}  // namespace rekindle::restore
