#include "cli/job_way.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "base/image_labels.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {

JobWay::JobWay(const v1::Image& image)
    : start_(LabelOf(image.labels(), v1::kSupervisedLabel)),
      before_(ParseAncestors(LabelOf(image.labels(), v1::kSupervisedAncestorsLabel))) {
  uint64_t number = 0;
  if (absl::SimpleAtoi(LabelOf(image.labels(), v1::kSupervisedNumberLabel), &number)) number_ = number;
}

bool JobWay::HasInPast(const JobWay& other) const {
  const auto before = before_.find(other.start_);
  return before != before_.end() && *other.number_ <= before->second;
}

std::optional<bool> JobWay::IsLaterThan(const JobWay& other) const {
  if (start_.empty() || other.start_.empty() || !number_ || !other.number_) return std::nullopt;
  if (start_ == other.start_)
    return *number_ == *other.number_ ? std::nullopt : std::optional(*number_ > *other.number_);
  if (HasInPast(other)) return true;
  if (other.HasInPast(*this)) return false;
  return std::nullopt;
}

bool JobWay::WentAnotherWayThan(const JobWay& other) const {
  if (start_ == other.start_ || IsLaterThan(other)) return false;
  const auto passes = [](const JobWay& way, const std::string& start) {
    return way.before_.contains(start) || (way.number_ && !start.empty() && way.start_ == start);
  };
  return (number_ && !start_.empty() && passes(other, start_)) ||
         std::any_of(before_.begin(), before_.end(),
                     [&](const auto& start) { return passes(other, start.first); });
}

}  // namespace rekindle::cli
