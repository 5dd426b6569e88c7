#include "cli/image_descent.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/image_labels.h"
#include "cli/copy_source.h"
#include "cli/job_way.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {
namespace {

std::optional<uint64_t> NumberOf(const v1::Image& image) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(LabelOf(image.labels(), v1::kSupervisedNumberLabel), &number)) return std::nullopt;
  return number;
}

constexpr size_t kLeastOfEarlierStarts = 2;

}  // namespace

std::optional<bool> IsLaterByLabels(const v1::Image& a, const v1::Image& b) {
  return JobWay(a).IsLaterThan(JobWay(b));
}

bool IsOlderOfJob(const v1::Image& one, const v1::Image& image) {
  return !JobOf(one).empty() && JobOf(one) == JobOf(image) && IsLaterByLabels(image, one) == true;
}

bool IsInPastOf(const v1::Image& one, const v1::Image& image) {
  return LabelOf(one.labels(), v1::kJobNameLabel) == LabelOf(image.labels(), v1::kJobNameLabel) &&
         !one.labels().contains(v1::kSupervisedAskedLabel) && !one.labels().contains(v1::kGroupIdLabel) &&
         IsOlderOfJob(one, image);
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

std::vector<v1::Image> CopiesToGoBackTo(const std::vector<v1::Image>& copies, const v1::Image& image) {
  std::vector<v1::Image> stay;
  const std::vector<SoundStretch> sound = ParseSound(LabelOf(image.labels(), v1::kSupervisedSoundLabel));
  if (sound.empty()) return stay;
  std::vector<NumberInStart> numbers(copies.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].damaged()) continue;
    numbers[i] = {LabelOf(copies[i].labels(), v1::kSupervisedLabel), NumberOf(copies[i]).value_or(0)};
  }
  if (const std::optional<size_t> newest = NewestSound(sound, numbers)) stay.push_back(copies[*newest]);
  const std::string own = LabelOf(image.labels(), v1::kSupervisedLabel);
  const uint64_t last = sound[0].start == own ? sound[0].last : 0;
  std::optional<size_t> next;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (numbers[i].start != own || numbers[i].number <= last || !IsInPastOf(copies[i], image)) continue;
    if (!next || numbers[i].number < numbers[*next].number) next = i;
  }
  if (next) stay.push_back(copies[*next]);
  return stay;
}

}  // namespace rekindle::cli
