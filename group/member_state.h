// What a member of a group does next. Pure: no clock, no input or output. Not thread-safe.
//
//   preparing --freeze--> freezing --go--> storing --(stored)--> in doubt --commit--> published
//       |                    |                |                     +------abort----> removed
//       +--------------------+----------------+--abort, broken stream, limit--> given up: no trace
//
// Before it has stored it may give up whenever it likes. Afterwards the coordinator alone decides.
#pragma once

#include "absl/time/time.h"

namespace rekindle::group {

// How long a member that is prepared waits for the others, while its job runs on. Its supervisor can take no
// image of it meanwhile: `image_period` is the time between two of those; zero: it takes none by interval.
absl::Duration PrepareLimit(absl::Duration image_period);

class MemberState {
 public:
  enum class Verdict { kWait, kGoOn, kGiveUp };
  enum class Fate { kWait, kPublish, kRemove, kInDoubt };

  // From the coordinator.
  void OnFreeze() { Told(Step::kPreparing, Step::kFreezing); }
  void OnGo() { Told(Step::kFreezing, Step::kStoring); }
  void OnCommit();
  void OnAbort();
  void OnBroken();  // nothing more will come from it
  // The job has stood still, or the member has waited, for too long.
  void OnLimit() { given_up_ = given_up_ || step_ != Step::kStored; }
  // The image is durable.
  void OnStored() { step_ = Step::kStored; }

  Verdict MayFreeze() const { return At(Step::kFreezing); }
  Verdict MayGoOn() const { return At(Step::kStoring); }
  Verdict MayStore() const { return MayGoOn(); }
  // Once it has stored.
  Fate fate() const;
  bool gives_up() const { return given_up_ || aborted_ || broken_; }

 private:
  enum class Step { kPreparing, kFreezing, kStoring, kStored };
  void Told(Step from, Step to);
  Verdict At(Step step) const;

  Step step_ = Step::kPreparing;
  bool given_up_ = false, aborted_ = false, committed_ = false, broken_ = false;
};

}  // namespace rekindle::group
