// Whether a job whose images are copied to a place goes on elsewhere, too: from an image that was taken in
// there, as when a node was given up that had only lost its network.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// What is to be said where `there`, which has come to the place, is of the job of `ours`, but of another
// start of it, and not what this one has come from; empty: it is not, or that is not known. Begins with
// v1::kGoesOnElsewhere.
std::string TellsOfOtherStart(const v1::Image& ours, const v1::Image& there);

// What a place is seen to have of a name, from one copy there to the next.
class OtherStarts {
 public:
  // `there`: what it has, newest first, by what names an image's content, as `ours` do. Those that have come
  // since the last look and are not ours. None at the first look: what was there before is what the job has
  // gone on from.
  std::set<std::string> Look(const std::vector<std::string>& there, const std::set<std::string>& ours);
  // Of one that Look has returned: does it tell of another start (TellsOfOtherStart)?
  bool Note(const v1::Image& ours, const v1::Image& there);
  // What was told last, until nothing has come there since what is ours.
  const std::string& told() const { return told_; }

 private:
  std::optional<std::set<std::string>> seen_;
  std::string told_;
};

// For who starts a job from an image that was taken in: what to see to first, where the place to which its
// images are copied got its newest one, `there`, just before; empty: nothing.
std::string WarnsOfLateImage(const v1::Image& there, const std::string& place, absl::Time now);

}  // namespace rekindle::cli
