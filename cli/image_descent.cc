#include "cli/image_descent.h"

#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "base/image_labels.h"
#include "base/job_descent.h"
#include "cli/copy_source.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {
namespace {

std::optional<uint64_t> NumberOf(const v1::Image& image) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(LabelOf(image.labels(), v1::kSupervisedNumberLabel), &number)) return std::nullopt;
  return number;
}

}  // namespace

std::optional<bool> IsLaterByLabels(const v1::Image& a, const v1::Image& b) {
  const std::string start_a = LabelOf(a.labels(), v1::kSupervisedLabel),
                    start_b = LabelOf(b.labels(), v1::kSupervisedLabel);
  const auto number_a = NumberOf(a), number_b = NumberOf(b);
  if (start_a.empty() || start_b.empty() || !number_a || !number_b) return std::nullopt;
  if (start_a == start_b) return *number_a == *number_b ? std::nullopt : std::optional(*number_a > *number_b);
  if (IsInPast(LabelOf(a.labels(), v1::kSupervisedAncestorsLabel), start_b, *number_b)) return true;
  if (IsInPast(LabelOf(b.labels(), v1::kSupervisedAncestorsLabel), start_a, *number_a)) return false;
  return std::nullopt;
}

bool IsInPastOf(const v1::Image& one, const v1::Image& image) {
  return !JobOf(one).empty() && JobOf(one) == JobOf(image) &&
         !one.labels().contains(v1::kSupervisedAskedLabel) && !one.labels().contains(v1::kGroupIdLabel) &&
         IsLaterByLabels(image, one) == true;
}

}  // namespace rekindle::cli
