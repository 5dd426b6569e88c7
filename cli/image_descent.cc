#include "cli/image_descent.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

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

// The starts that it has come from and its own, each up to what lies in its past.
StartsBefore WayOf(const v1::Image& image) {
  StartsBefore way = ParseAncestors(LabelOf(image.labels(), v1::kSupervisedAncestorsLabel));
  const std::string start = LabelOf(image.labels(), v1::kSupervisedLabel);
  if (const auto number = NumberOf(image); number && !start.empty()) way[start] = *number;
  return way;
}

constexpr size_t kLeastOfEarlierStarts = 2;

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

bool WentDifferentWays(const v1::Image& a, const v1::Image& b) {
  if (LabelOf(a.labels(), v1::kSupervisedLabel) == LabelOf(b.labels(), v1::kSupervisedLabel) ||
      IsLaterByLabels(a, b))
    return false;
  const StartsBefore way_a = WayOf(a), way_b = WayOf(b);
  return std::any_of(way_a.begin(), way_a.end(),
                     [&](const auto& start) { return way_b.contains(start.first); });
}

bool IsInPastOf(const v1::Image& one, const v1::Image& image) {
  return !JobOf(one).empty() && JobOf(one) == JobOf(image) &&
         LabelOf(one.labels(), v1::kJobNameLabel) == LabelOf(image.labels(), v1::kJobNameLabel) &&
         !one.labels().contains(v1::kSupervisedAskedLabel) && !one.labels().contains(v1::kGroupIdLabel) &&
         IsLaterByLabels(image, one) == true;
}

bool IsOfEarlierStart(const v1::Image& one, const v1::Image& image) {
  return LabelOf(one.labels(), v1::kSupervisedLabel) != LabelOf(image.labels(), v1::kSupervisedLabel) &&
         IsInPastOf(one, image);
}

std::vector<v1::Image> BeyondKeptOfEarlier(std::vector<v1::Image> copies, size_t keep) {
  // Along one way the numbers grow. What can't be restored stays in nobody's place.
  std::stable_sort(copies.begin(), copies.end(), [](const v1::Image& a, const v1::Image& b) {
    return std::pair(!a.damaged(), NumberOf(a).value_or(0)) <
           std::pair(!b.damaged(), NumberOf(b).value_or(0));
  });
  copies.resize(copies.size() - std::min(copies.size(), std::max(keep, kLeastOfEarlierStarts)));
  return copies;
}

const v1::Image* SoundAmong(const std::vector<v1::Image>& copies, const v1::Image& image) {
  std::vector<NumberInStart> numbers(copies.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].damaged()) continue;
    numbers[i] = {LabelOf(copies[i].labels(), v1::kSupervisedLabel), NumberOf(copies[i]).value_or(0)};
  }
  const std::optional<size_t> sound =
      NewestSound(ParseSound(LabelOf(image.labels(), v1::kSupervisedSoundLabel)), numbers);
  return sound ? &copies[*sound] : nullptr;
}

}  // namespace rekindle::cli
