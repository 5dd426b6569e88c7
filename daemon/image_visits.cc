#include "daemon/image_visits.h"

#include "base/clock.h"
#include "base/timed_await.h"

namespace rekindle::daemon {
namespace {

// For the job's thread, which may have the record or old images to see to, and for the job's boundary.
constexpr double kVisitPatienceSeconds = 40;
// Whether whoever waits has gone, or the job's thread.
constexpr absl::Duration kLookAtVisit = absl::Milliseconds(20);

}  // namespace

absl::Status ImageVisits::Begin(const std::function<bool()>& is_received, const std::atomic<bool>& cancelled,
                                uint64_t* number) {
  const Stopwatch waited;
  *number = 0;
  while (is_received() && waited.seconds() < kVisitPatienceSeconds) {
    if (cancelled.load()) return absl::CancelledError("the image was given up; the job runs on");
    bool begins;
    {
      absl::MutexLock lock(&mutex_);
      // The one before may be about to end.
      begins = now_ == 0;
      if (begins) {
        *number = now_ = ++last_;
        may_freeze_ = false;
      } else if (now_ == *number && may_freeze_) {
        return absl::OkStatus();
      }
    }
    if (begins) wake_();
    absl::MutexLock lock(&mutex_);
    const auto changed = [this, mine = *number]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return now_ == mine ? may_freeze_ : now_ == 0;
    };
    AwaitUntil(mutex_, absl::Condition(&changed), Deadline(kLookAtVisit));
  }
  return absl::OkStatus();
}

void ImageVisits::IsFrozen(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  if (number != 0 && now_ == number) frozen_ = number;
}

void ImageVisits::End(uint64_t number, bool stored) {
  absl::MutexLock lock(&mutex_);
  if (number == 0 || now_ != number) return;
  now_ = 0;
  if (stored) stored_ = number;
}

uint64_t ImageVisits::WhichWaits() const {
  absl::MutexLock lock(&mutex_);
  return may_freeze_ ? 0 : now_;
}

bool ImageVisits::IsUnderWay(uint64_t number) const {
  absl::MutexLock lock(&mutex_);
  return now_ == number;
}

void ImageVisits::LetFreeze(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  if (now_ == number) may_freeze_ = true;
}

bool ImageVisits::AwaitOver(uint64_t number, bool until_stored, absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  const auto over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return now_ != number || (!until_stored && frozen_ == number);
  };
  return AwaitUntil(mutex_, absl::Condition(&over), Deadline(limit));
}

bool ImageVisits::HasImage(uint64_t number, bool until_stored) const {
  absl::MutexLock lock(&mutex_);
  return stored_ == number || (!until_stored && frozen_ == number);
}

}  // namespace rekindle::daemon
