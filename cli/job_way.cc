#include "cli/job_way.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "base/image_labels.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {

JobWay::JobWay(const v1::Image& image)
    : start_(LabelOf(image.labels(), v1::kSupervisedLabel)),
      before_(ParseAncestors(LabelOf(image.labels(), v1::kSupervisedAncestorsLabel))),
      seen_(ParseAncestors(LabelOf(image.labels(), v1::kSupervisedSeenLabel))) {
  uint64_t number = 0;
  if (absl::SimpleAtoi(LabelOf(image.labels(), v1::kSupervisedNumberLabel), &number)) number_ = number;
}

bool JobWay::LiesIn(const StartsBefore& starts) const {
  const auto before = starts.find(start_);
  return before != starts.end() && *number_ <= before->second;
}

std::optional<bool> JobWay::IsLaterThan(const JobWay& other) const {
  if (start_.empty() || other.start_.empty() || !number_ || !other.number_) return std::nullopt;
  if (start_ == other.start_)
    return *number_ == *other.number_ ? std::nullopt : std::optional(*number_ > *other.number_);
  if (other.LiesIn(before_)) return true;
  if (LiesIn(other.before_)) return false;
  return std::nullopt;
}

std::optional<bool> JobWay::CountsBefore(const JobWay& other) const {
  if (const std::optional<bool> later = IsLaterThan(other)) return later;
  if (start_.empty() || other.start_.empty() || start_ == other.start_ || !number_ || !other.number_)
    return std::nullopt;
  const bool saw = other.LiesIn(seen_), was_seen = LiesIn(other.seen_);
  return saw == was_seen ? std::nullopt : std::optional(saw);
}

bool JobWay::WentAnotherWayThan(const JobWay& other) const {
  if (start_ == other.start_ || CountsBefore(other)) return false;
  const auto passes = [](const JobWay& way, const std::string& start) {
    return way.before_.contains(start) || (way.number_ && !start.empty() && way.start_ == start);
  };
  return (number_ && !start_.empty() && passes(other, start_)) ||
         std::any_of(before_.begin(), before_.end(),
                     [&](const auto& start) { return passes(other, start.first); });
}

}  // namespace rekindle::cli
