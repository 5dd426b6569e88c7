#include "group/member_state.h"

#include <algorithm>

namespace rekindle::group {
namespace {

// One of the others may have an image of its own being stored first. A coordinator that has gone is noticed
// sooner.
constexpr absl::Duration kLongestWait = absl::Hours(1), kShortestWait = absl::Minutes(10);
// What a failure costs grows with each image that is missing.
constexpr int kPeriodsMissed = 2;

}  // namespace

absl::Duration PrepareLimit(absl::Duration image_period) {
  if (image_period <= absl::ZeroDuration()) return kLongestWait;
  return std::clamp(kPeriodsMissed * image_period, kShortestWait, kLongestWait);
}

void MemberState::Told(Step from, Step to) {
  if (step_ == from) {
    step_ = to;
  } else if (step_ != Step::kStored) {
    given_up_ = true;  // it does not speak our language
  }
}

void MemberState::OnCommit() {
  // Nobody can decide so before this member has said that it has stored.
  if (step_ != Step::kStored) {
    given_up_ = true;
  } else if (!aborted_) {
    committed_ = true;
  }
}

void MemberState::OnAbort() {
  if (!committed_) aborted_ = true;
}

void MemberState::OnBroken() { broken_ = true; }

MemberState::Verdict MemberState::At(Step step) const {
  if (gives_up()) return Verdict::kGiveUp;
  return step_ >= step ? Verdict::kGoOn : Verdict::kWait;
}

MemberState::Fate MemberState::fate() const {
  if (committed_) return Fate::kPublish;
  // An abort that came before it had stored holds too: no decision to commit was possible.
  if (aborted_) return Fate::kRemove;
  return broken_ || given_up_ ? Fate::kInDoubt : Fate::kWait;
}

}  // namespace rekindle::group
