#include "ckpt/stand_still.h"

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::ckpt {
namespace {

struct Standing {
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return jobs == 0; }

  absl::Mutex mutex;
  int jobs ABSL_GUARDED_BY(mutex) = 0;
};

Standing& OfThisProcess() {
  static Standing& standing = *new Standing();
  return standing;
}

}  // namespace

StandStill::StandStill() {
  absl::MutexLock lock(&OfThisProcess().mutex);
  ++OfThisProcess().jobs;
}

StandStill::~StandStill() {
  absl::MutexLock lock(&OfThisProcess().mutex);
  --OfThisProcess().jobs;
}

void StopWhenNoneStandsStill(const std::function<void()>& stop) {
  Standing& standing = OfThisProcess();
  // Held through the stop: what other threads still do until it is there, they do without a job.
  absl::MutexLock lock(&standing.mutex, absl::Condition(&standing, &Standing::None));
  stop();
}

}  // namespace rekindle::ckpt
