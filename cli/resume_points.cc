#include "cli/resume_points.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/image_labels.h"
#include "cli/copy_source.h"
#include "cli/image_descent.h"
#include "cli/job_way.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

bool CameFromElsewhere(const v1::Image& image) { return image.labels().contains(v1::kOriginLabel); }

// Had `other` come here when the start began that has taken `image` here? Both by this machine's clock.
bool WasAtHand(const v1::Image& other, const v1::Image& image) {
  int64_t started = 0;
  return !CameFromElsewhere(image) &&
         absl::SimpleAtoi(LabelOf(image.labels(), v1::kSupervisedLabel), &started) &&
         other.created_unix_ns() <= started;
}

// When it was taken is known: a tag that was given later has no such label, and what was copied here has come
// here later.
bool IsSure(const v1::Image& image) {
  return TimeOfTag(image.reference()).has_value() ||
         (image.labels().contains(v1::kSupervisedNumberLabel) && !CameFromElsewhere(image));
}

// A later image has an earlier time in its tag. `all_in_order`: also what came from elsewhere is listed in
// the order in which it was taken, as far as its labels don't say more.
bool ClocksWereWrong(const std::vector<v1::Image>& listed, bool all_in_order) {
  const v1::Image* later = nullptr;
  for (const v1::Image& image : listed) {
    const auto time = TimeOfTag(image.reference());
    if (!time) continue;
    if (later != nullptr) {
      const std::optional<bool> by_labels = IsLaterByLabels(*later, image);
      const bool in_order = all_in_order || !CameFromElsewhere(*later);
      const std::optional<bool> is_later = by_labels  ? by_labels
                                           : in_order ? std::optional(true)
                                                      : std::nullopt;
      const absl::Time other = *TimeOfTag(later->reference());
      if (is_later && other != *time && *is_later != (other > *time)) return true;
    }
    later = &image;
  }
  return false;
}

absl::Status ClocksDoNotTell(const v1::Image& a, const v1::Image& b) {
  return absl::FailedPreconditionError(absl::StrCat(
      "it can't be told whether ", a.reference(), " or ", b.reference(),
      " shows the job further: only the clocks of the machines tell, and one of them was set back, as "
      "other images of this name show. Give one of the two with --from, or remove the one that is not "
      "to count"));
}

// `first`: what must come before the choice.
absl::Status WentTwoWays(const v1::Image& a, const v1::Image& b, const std::string& first) {
  return absl::FailedPreconditionError(absl::StrCat(
      "it can't be told whether ", a.reference(), " or ", b.reference(),
      " is to be gone on from: both have come from one start of the job, each its own way, and neither shows "
      "what the other has done. ",
      first,
      "Start the job once with --from and the one that is to count, in place of --resume, which goes on from "
      "what that start takes from then on"));
}

// As far as whoever goes on from one of `here` is not known to have seen it: of what went another way than
// `tip` the last one of its way, of which neither that nor what has come of it is here. Null: there is none.
const v1::Image* UnseenOtherWay(const v1::Image& tip, const std::vector<v1::Image>& here,
                                const std::set<std::string>& origins_here,
                                const std::vector<const v1::Image*>& there) {
  const JobWay way(tip);
  std::vector<JobWay> ways_here;
  const v1::Image* other = nullptr;
  for (const v1::Image* image : there) {
    if (image->damaged() || !TimeOfTag(image->reference()) || origins_here.contains(OriginOf(*image)))
      continue;
    const JobWay one(*image);
    if (!one.WentAnotherWayThan(way)) continue;
    if (ways_here.empty()) ways_here = std::vector<JobWay>(here.begin(), here.end());
    if (std::any_of(ways_here.begin(), ways_here.end(),
                    [&](const JobWay& ours) { return ours.CountsBefore(one) == true; }))
      continue;
    if (other == nullptr || one.CountsBefore(JobWay(*other)) == true) other = image;
  }
  return other;
}

}  // namespace

std::optional<absl::Time> TimeOfTag(absl::string_view reference) {
  const std::string tag = TagOf(std::string(reference));
  constexpr absl::string_view kForm = "dddddddd-dddddd.ddd";
  const auto fits = [](char form, char c) { return form == 'd' ? absl::ascii_isdigit(c) : form == c; };
  if (!std::equal(kForm.begin(), kForm.end(), tag.begin(), tag.end(), fits)) return std::nullopt;
  absl::Time time;
  const std::string text = absl::StrCat(tag.substr(0, 4), "-", tag.substr(4, 2), "-", tag.substr(6, 2), "T",
                                        tag.substr(9, 2), ":", tag.substr(11, 2), ":", tag.substr(13), "Z");
  if (!absl::ParseTime(absl::RFC3339_full, text, &time, nullptr)) return std::nullopt;
  return time;
}

absl::Time MomentOf(const v1::Image& image) {
  return TimeOfTag(image.reference()).value_or(absl::FromUnixNanos(image.created_unix_ns()));
}

absl::StatusOr<std::vector<v1::Image>> ResumePoints(std::vector<v1::Image> images) {
  std::map<std::string, size_t> oldest;  // of each digest
  for (size_t i = 0; i < images.size(); ++i) oldest[images[i].digest()] = i;
  const std::vector<JobWay> ways(images.begin(), images.end());
  // What has come from elsewhere may have come in any order: each gets its place by its number in its start,
  // and before the starts that descend from it.
  std::vector<size_t> order;  // the last one is the newest
  StartsBefore last_of;       // up to where what is in order shows each start: nothing of it is after that
  for (size_t i = images.size(); i-- > 0;) {
    if (!images[i].digest().empty() && oldest[images[i].digest()] != i) continue;
    auto place = order.end();
    const auto last = last_of.find(ways[i].start());
    if (CameFromElsewhere(images[i]) && last != last_of.end() && ways[i].number() <= last->second) {
      place = std::find_if(order.begin(), order.end(),
                           [&](size_t other) { return ways[other].CountsBefore(ways[i]) == true; });
    }
    order.insert(place, i);
    const auto shows = [&](const std::string& start, uint64_t number) {
      uint64_t& known = last_of.try_emplace(start, number).first->second;
      known = std::max(known, number);
    };
    if (ways[i].number()) shows(ways[i].start(), *ways[i].number());
    for (const StartsBefore* starts : {&ways[i].before(), &ways[i].seen()}) {
      for (const auto& [start, number] : *starts) shows(start, number);
    }
  }
  std::reverse(order.begin(), order.end());
  std::vector<v1::Image> points;
  for (const size_t i : order) points.push_back(std::move(images[i]));
  for (size_t i = 1; i < order.size(); ++i) {
    const v1::Image &front = points.front(), &point = points[i];
    const JobWay &way = ways[order.front()], &other_way = ways[order[i]];
    const std::optional<bool> is_later = way.CountsBefore(other_way);
    if (is_later == true) continue;
    if (is_later == false) {
      return absl::FailedPreconditionError(
          absl::StrCat("it can't be told whether ", front.reference(), " or ", point.reference(),
                       " shows the job further: the first one was stored later, and was taken earlier, as "
                       "their labels say. Give one of the two with --from, or remove the one that is not to "
                       "count"));
    }
    // Who started it with the other one at hand has chosen.
    if (!WasAtHand(point, front) && !point.damaged() && way.WentAnotherWayThan(other_way))
      return WentTwoWays(front, point, /*first=*/"");
    if (!IsSure(front) && IsSure(point)) {
      return absl::FailedPreconditionError(
          absl::StrCat("it can't be told whether ", front.reference(), " or ", point.reference(),
                       " shows the job further: the first one's name was given to it later, whenever it was "
                       "taken. Give one of "
                       "them with --from, or remove the name that is not to count ('rekindle rm ",
                       front.reference(), "'; 'rekindle tag' gives it another one)"));
    }
    const auto time = TimeOfTag(front.reference()), other = TimeOfTag(point.reference());
    if (CameFromElsewhere(front) && time && other && *time < *other) {
      return absl::FailedPreconditionError(absl::StrCat(
          "it can't be told whether ", front.reference(), " or ", point.reference(),
          " shows the job further: the first one has come here later, and was taken earlier by the clock of "
          "its machine. Give one of the two with --from, or remove the one that is not to count"));
    }
  }
  return points;
}

void DropOtherUsersImages(const std::vector<v1::Image>& here, std::vector<v1::Image>* there) {
  std::set<std::string> origins, jobs;
  for (const v1::Image& image : here) {
    origins.insert(OriginOf(image));
    jobs.insert(JobOf(image));
  }
  std::set<uint32_t> owners;
  for (const v1::Image& image : *there) {
    if (origins.contains(OriginOf(image))) owners.insert(image.owner_uid());
  }
  if (owners.empty()) return;
  std::erase_if(*there, [&](const v1::Image& image) {
    return !owners.contains(image.owner_uid()) && !JobOf(image).empty() && !jobs.contains(JobOf(image));
  });
}

absl::StatusOr<const v1::Image*> NewerElsewhere(const std::vector<v1::Image>& here,
                                                const std::vector<v1::Image>& listed_there,
                                                const std::string& place) {
  std::map<std::string, const v1::Image*> oldest;  // of each origin: an image's tags were given to it later
  for (const v1::Image& image : listed_there) oldest[OriginOf(image)] = &image;
  std::vector<const v1::Image*> there;
  for (const v1::Image& image : listed_there) {
    if (OriginOf(image).empty() || oldest[OriginOf(image)] == &image) there.push_back(&image);
  }
  if (here.empty()) {
    const auto whole =
        std::find_if(there.begin(), there.end(), [](const v1::Image* image) { return !image->damaged(); });
    return whole == there.end() ? nullptr : *whole;
  }
  std::set<std::string> origins;
  for (const v1::Image& image : here) origins.insert(OriginOf(image));
  const JobWay ours(here.front());
  const v1::Image* newest = nullptr;  // of those of which labels say nothing
  const v1::Image* later = nullptr;   // taken after the newest of here, by their labels
  bool has_ours = false, has_newest = false, is_newer = false;
  for (const v1::Image* image : there) {
    if (origins.contains(OriginOf(*image))) {
      // Of what came there after one of here none was taken before that, as far as labels don't tell.
      if (!has_ours) has_newest = OriginOf(*image) == OriginOf(here.front());
      has_ours = true;
      continue;
    }
    if (image->damaged() || !TimeOfTag(image->reference())) continue;
    const std::optional<bool> by_labels = JobWay(*image).CountsBefore(ours);
    if (by_labels == true && (later == nullptr || JobWay(*image).CountsBefore(JobWay(*later)) == true))
      later = image;
    if (by_labels) continue;
    if (newest == nullptr && !has_ours) newest = image;
    // The newest there need not be the one that came last.
    is_newer = is_newer || *TimeOfTag(image->reference()) > MomentOf(here.front());
  }
  // Whatever the clocks say.
  const v1::Image& tip = later != nullptr ? *later : here.front();
  if (const v1::Image* const other = UnseenOtherWay(tip, here, origins, there); other != nullptr) {
    const std::string copy_other =
        absl::StrCat("'rekindle copy ", other->reference(), " --from ", place, "'");
    const std::string copy_tip = absl::StrCat("'rekindle copy ", tip.reference(), " --from ", place, "'");
    return WentTwoWays(*other, tip,
                       later == nullptr ? absl::StrCat(copy_other, " brings the first one here. ")
                                        : absl::StrCat(copy_other, " and ", copy_tip, " bring them here. "));
  }
  if (later != nullptr) return later;
  if (newest == nullptr || has_newest) return newest;
  if (has_ours) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it can't be told whether ", newest->reference(), " there or ", here.front().reference(),
        " here shows the job further: the first one came there after what has come from here, and the second "
        "one is not there. Give one of the two with --from (the first one once 'rekindle copy ",
        newest->reference(), " --from ", place,
        "' has brought it here), or remove the one that is not to count"));
  }
  const bool clocks_wrong =
      ClocksWereWrong(here, /*all_in_order=*/false) || ClocksWereWrong(listed_there, /*all_in_order=*/true);
  if (clocks_wrong && TimeOfTag(here.front().reference())) return ClocksDoNotTell(*newest, here.front());
  return is_newer ? newest : nullptr;
}

}  // namespace rekindle::cli
