#include "cli/other_starts.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/image_labels.h"
#include "cli/copy_source.h"
#include "cli/image_descent.h"
#include "rekindle/v1/copy_trouble.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {
namespace {

// One that runs takes them at such intervals, and more often than it is slower.
constexpr absl::Duration kMayStillRun = absl::Minutes(10);

std::string OnHost(const v1::Image& image) {
  const std::string host = LabelOf(image.labels(), v1::kSupervisedHostLabel);
  return host.empty() ? "" : absl::StrCat(" on ", host);
}

}  // namespace

std::string TellsOfOtherStart(const v1::Image& ours, const v1::Image& there) {
  const std::string our_start = LabelOf(ours.labels(), v1::kSupervisedLabel),
                    start = LabelOf(there.labels(), v1::kSupervisedLabel);
  if (JobOf(ours).empty() || JobOf(ours) != JobOf(there) || our_start.empty() || start.empty() ||
      our_start == start || IsLaterByLabels(ours, there) == true)
    return "";
  int64_t submitted = 0;
  std::string since;
  if (absl::SimpleAtoi(start, &submitted)) {
    since = absl::StrCat(", started ", absl::FormatTime("%Y-%m-%d %H:%M:%S UTC",
                                                        absl::FromUnixNanos(submitted), absl::UTCTimeZone()));
  }
  return absl::StrCat(
      v1::kGoesOnElsewhere, there.reference(), " has come there, taken", OnHost(there),
      " of another start of it", since,
      ". Two of one job write to the same files, and each goes its own way: end one of the two "
      "('rekindle stop')");
}

std::set<std::string> OtherStarts::Look(const std::vector<std::string>& there,
                                        const std::set<std::string>& ours) {
  if (!there.empty() && ours.contains(there.front())) told_.clear();
  std::set<std::string> now(there.begin(), there.end());
  const std::optional<std::set<std::string>> before = std::exchange(seen_, now);
  if (!before) return {};
  std::erase_if(now, [&](const std::string& one) { return before->contains(one) || ours.contains(one); });
  return now;
}

bool OtherStarts::Note(const v1::Image& ours, const v1::Image& there) {
  std::string told = TellsOfOtherStart(ours, there);
  if (told.empty()) return false;
  told_ = std::move(told);
  return true;
}

std::string WarnsOfLateImage(const v1::Image& there, const std::string& place, absl::Time now) {
  const absl::Duration age = now - absl::FromUnixNanos(there.created_unix_ns());
  if (age > kMayStillRun) return "";
  return absl::StrCat(
      "the newest image in ", place, ", ", there.reference(), ", was taken", OnHost(there), " ",
      absl::FormatDuration(absl::Trunc(std::max(age, absl::Seconds(1)), absl::Seconds(1))),
      " ago: make sure that the job does not run there any more (that the node is off), or two of it "
      "write to the same files");
}

}  // namespace rekindle::cli
