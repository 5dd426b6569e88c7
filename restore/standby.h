// Copies that stand by: restored before anybody asks for them, up to the moment before they run. CRIU makes a
// process with hundreds of mapped libraries in tens of milliseconds; whoever takes one that stands by waits
// only for the rest.
//
// What stands by has its working set, and no CPU: its processes have not run yet. All of them together have
// so much memory; where that is not enough, those of images that were asked for last stay.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "restore/clone.h"

namespace rekindle::restore {

// What of a copy's options is settled before it can run; the rest is told to it at the end.
struct StandbyKind {
  std::string image;  // digest
  Network network = Network::kHost;
  bool grouped = false;
  Fill fill = Fill::kIdle;
  friend auto operator<=>(const StandbyKind&, const StandbyKind&) = default;
};
StandbyKind KindOf(const CloneOptions& options);

// How much may stand by, and for how long.
struct StandbyBounds {
  uint64_t bytes = 0;                                 // of memory, of all together
  absl::Duration unused_for = absl::Minutes(15);      // since their image was last asked for
  absl::Duration not_displaced = absl::Minutes(1);    // as long they do not make room for others, …
  absl::Duration never_displaced = absl::Seconds(5);  // … but for those asked for far more often after this
  uint64_t least_available = uint64_t{1}
                             << 30;  // of the machine's memory: with less, those used longest ago go

  // A thirty-second of the memory of this machine.
  static StandbyBounds OfThisMachine();
};

// Thread-safe.
class StandbyPool {
 public:
  // Blocks until somebody wants the copy, and returns what he asks for. Cancelled: nobody will.
  using Park = std::function<absl::StatusOr<CloneOptions>()>;
  // Makes a copy, calls `park` once when nothing but its own start is missing, and starts it. Called from
  // threads of the pool. `cancel_fd` becoming readable ends it.
  using Make =
      std::function<absl::StatusOr<CloneResult>(const StandbyKind& kind, int cancel_fd, const Park& park)>;

  // `size`: of each kind that is in use.
  StandbyPool(Make make, size_t size, const StandbyBounds& bounds = StandbyBounds::OfThisMachine());
  ~StandbyPool();

  // Starts one that stands by. Nothing: there is none, or it could not be started; then one must be made.
  std::optional<absl::StatusOr<CloneResult>> Claim(const CloneOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);
  // One of these was started: others of the kind are to stand by. `bytes`: of memory that each takes.
  void Want(const CloneOptions& options, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody wants any of this image again.
  void Forget(const std::string& image) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class State { kMaking, kParked, kClaimed, kCancelled, kEnded };
  struct Copy {
    StandbyKind kind;
    State state = State::kMaking;
    CloneOptions claim;  // from kClaimed on
    std::optional<absl::StatusOr<CloneResult>> result;
    bool collected = false;  // its result was taken, or nobody waits for one
    UniqueFd cancel, done;
    std::thread thread;
  };
  struct Demand {
    uint64_t bytes = 0;
    uint32_t uses = 0;
    absl::Time last_used, not_before;
    absl::Duration apart = absl::InfiniteDuration();  // the uses, in a moving average

    void NoteUse(absl::Time now);
    // For how long what was not used stays when this one wants its room.
    absl::Duration SparesOthersFor(const StandbyBounds& bounds) const;
  };

  // `any`: whether there was one to try.
  std::optional<absl::StatusOr<CloneResult>> ClaimOne(const CloneOptions& options, bool* any)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Keep() ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(Copy& copy) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<CloneOptions> ParkUntilClaimed(Copy& copy) ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel(Copy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropWhatIsNotWanted(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t CostOf(const StandbyKind& kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends one of those whose image was asked for longest ago, before `before`. False: there is none.
  bool DropOneOlderThan(absl::Time before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Lacks(const StandbyKind& kind, const Demand& demand, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeOneMore(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When there is something to do again; `looked`: up to when all was done that was due.
  absl::Time NextDue(absl::Time looked) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Make make_;
  const size_t size_;
  const StandbyBounds bounds_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<StandbyKind, Demand> wanted_ ABSL_GUARDED_BY(mutex_);
  absl::Time quiet_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // until then none is made
  // Only the keeper's thread adds and removes.
  std::list<Copy> copies_ ABSL_GUARDED_BY(mutex_);
  std::thread keeper_;
};

}  // namespace rekindle::restore
