#include "ckpt/staging_room.h"

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/cgroup_memory.h"
#include "base/status.h"
#include "base/timed_await.h"

namespace rekindle::ckpt {
namespace {

// How soon whoever waits sees that others have touched some of theirs, or that nobody wants him to any more.
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);

uint64_t Minus(uint64_t from, uint64_t what) { return from - std::min(from, what); }

}  // namespace

class AllRooms {
 public:
  static AllRooms& OfThisProcess() {
    static auto& rooms = *new AllRooms();
    return rooms;
  }

  absl::StatusOr<StagingRoom> Take(const StagingRoom::Wanted& wanted, const std::atomic<bool>* cancel)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    // In the order in which they come: who needs much would wait for ever else.
    while (somebody_waits_) RK_RETURN_IF_ERROR(Wait(&AllRooms::NobodyWaits, cancel));
    for (;;) {
      const absl::StatusOr<uint64_t> available = OwnAvailableMemoryBytes();
      RK_RETURN_IF_ERROR(available.status());
      // What the others have touched by now counts twice: this is too little rather than too much.
      const uint64_t half = Minus(Minus(*available, untouched_bytes_), wanted.beside_bytes) / 2;
      const uint64_t budget = wanted.budget_bytes != 0 ? wanted.budget_bytes : half;
      if (wanted.budget_bytes != 0 || AllTouched() || wanted.bytes <= half) {
        const uint64_t untouched = std::min(wanted.bytes, budget);
        untouched_bytes_ += untouched;
        return StagingRoom(*available, budget, untouched);
      }
      somebody_waits_ = true;
      const absl::Status waited = Wait(&AllRooms::AllTouched, cancel);
      somebody_waits_ = false;
      RK_RETURN_IF_ERROR(waited);
    }
  }

  void LetGo(uint64_t untouched_bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    untouched_bytes_ -= untouched_bytes;
  }

 private:
  bool AllTouched() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return untouched_bytes_ == 0; }
  bool NobodyWaits() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !somebody_waits_; }

  absl::Status Wait(bool (AllRooms::*until)() const, const std::atomic<bool>* cancel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (cancel != nullptr && cancel->load())
      return absl::CancelledError("the capture was cancelled; the job runs on");
    AwaitUntil(mutex_, absl::Condition(this, until), Deadline(kLookEvery));
    return absl::OkStatus();
  }

  absl::Mutex mutex_;
  uint64_t untouched_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool somebody_waits_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<StagingRoom> StagingRoom::Take(const Wanted& wanted, const std::atomic<bool>* cancel) {
  return AllRooms::OfThisProcess().Take(wanted, cancel);
}

StagingRoom::~StagingRoom() {
  if (untouched_bytes_ != 0) AllRooms::OfThisProcess().LetGo(untouched_bytes_);
}

}  // namespace rekindle::ckpt
