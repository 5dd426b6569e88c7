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
#include "cli/copy_source.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {
namespace {

bool CameFromElsewhere(const v1::Image& image) { return image.labels().contains(v1::kOriginLabel); }

// When it was taken is known: a tag that was given later has no such label, and what was copied here has come
// here later.
bool IsSure(const v1::Image& image) {
  return TimeOfTag(image.reference()).has_value() ||
         (image.labels().contains(v1::kSupervisedNumberLabel) && !CameFromElsewhere(image));
}

std::optional<uint64_t> NumberOf(const v1::Image& image) {
  const auto found = image.labels().find(v1::kSupervisedNumberLabel);
  uint64_t number = 0;
  if (found == image.labels().end() || !absl::SimpleAtoi(found->second, &number)) return std::nullopt;
  return number;
}

// Of the job in all its starts; empty: not known.
std::string LineOf(const v1::Image& image) {
  for (const char* label : {v1::kSupervisedFirstLabel, v1::kSupervisedLabel}) {
    if (const auto found = image.labels().find(label); found != image.labels().end()) return found->second;
  }
  return "";
}

// Was `a` taken after `b`? Nothing: their labels don't tell.
std::optional<bool> IsLaterByLabels(const v1::Image& a, const v1::Image& b) {
  const auto start_a = a.labels().find(v1::kSupervisedLabel), start_b = b.labels().find(v1::kSupervisedLabel);
  if (start_a == a.labels().end() || start_b == b.labels().end() || LineOf(a) != LineOf(b))
    return std::nullopt;
  const auto number_a = NumberOf(a), number_b = NumberOf(b);
  if (!number_a || !number_b || *number_a == *number_b) return std::nullopt;
  if (start_a->second == start_b->second) return *number_a > *number_b;
  // Of two starts of which neither goes on from the other it is not known.
  const uint64_t before_a = *number_a >> v1::kBitsOfNumberInStart,
                 before_b = *number_b >> v1::kBitsOfNumberInStart;
  if (before_a != before_b) return before_a > before_b;
  // Earlier versions did not count, and only the first start has no other before it.
  const bool first_a = !a.labels().contains(v1::kSupervisedFirstLabel),
             first_b = !b.labels().contains(v1::kSupervisedFirstLabel);
  return before_a == 0 && first_a != first_b ? std::optional(first_b) : std::nullopt;
}

enum class Told { kSurely, kByClocks, kNot };
struct Verdict {
  bool later = false;
  Told told = Told::kSurely;
};

// Was `a` taken after `b`, which was listed before it, or after?
Verdict IsLater(const v1::Image& a, const v1::Image& b, bool a_listed_as_later) {
  // What has come from elsewhere was taken before it came.
  const v1::Image& later = a_listed_as_later ? a : b;
  if (!CameFromElsewhere(later) && IsSure(later)) return {a_listed_as_later, Told::kSurely};
  if (const auto by_labels = IsLaterByLabels(a, b)) return {*by_labels, Told::kSurely};
  const auto time_a = TimeOfTag(a.reference()), time_b = TimeOfTag(b.reference());
  if (time_a && time_b) return {*time_a > *time_b, Told::kByClocks};
  return {a_listed_as_later, IsSure(a) || IsSure(b) ? Told::kNot : Told::kSurely};
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

}  // namespace

std::optional<absl::Time> TimeOfTag(absl::string_view reference) {
  const size_t colon = reference.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  const absl::string_view tag = reference.substr(colon + 1);
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
  const bool clocks_wrong = ClocksWereWrong(images, /*all_in_order=*/false);
  std::map<std::string, size_t> oldest;  // of each digest
  for (size_t i = 0; i < images.size(); ++i) oldest[images[i].digest()] = i;
  // Those that were taken here are in their order; each of the others gets its place among what came before
  // it.
  struct Listed {
    v1::Image image;
    size_t at;
  };
  std::vector<Listed> points;
  for (size_t i = images.size(); i > 0; --i) {
    v1::Image& image = images[i - 1];
    if (!image.digest().empty() && oldest[image.digest()] != i - 1) continue;
    size_t place = points.size();
    while (place > 0 && !IsLater(image, points[place - 1].image, /*a_listed_as_later=*/true).later) --place;
    points.insert(points.begin() + static_cast<ptrdiff_t>(place), Listed{std::move(image), i - 1});
  }
  std::reverse(points.begin(), points.end());
  std::vector<v1::Image> sorted;
  for (const Listed& point : points) {
    const Verdict verdict = IsLater(points.front().image, point.image, points.front().at < point.at);
    if (&point == &points.front() || verdict.told == Told::kSurely) continue;
    if (verdict.told == Told::kByClocks && clocks_wrong)
      return ClocksDoNotTell(points.front().image, point.image);
    if (verdict.told == Told::kByClocks || !IsSure(point.image)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "it can't be told whether ", points.front().image.reference(), " or ", point.image.reference(),
        " shows the job further: the first one's name was given to it later, whenever it was "
        "taken. Give one of "
        "them with --from, or remove the name that is not to count ('rekindle rm ",
        points.front().image.reference(), "'; 'rekindle tag' gives it another one)"));
  }
  for (Listed& point : points) sorted.push_back(std::move(point.image));
  return sorted;
}

absl::StatusOr<const v1::Image*> NewerElsewhere(const std::vector<v1::Image>& here,
                                                const std::vector<v1::Image>& there) {
  std::set<std::string> origins;
  for (const v1::Image& image : here) origins.insert(OriginOf(image));
  std::map<std::string, const v1::Image*> oldest;  // of each origin: an image's tags were given to it later
  for (const v1::Image& image : there) oldest[OriginOf(image)] = &image;
  const v1::Image* newest = nullptr;
  for (const v1::Image& image : there) {
    if (image.damaged() || (!OriginOf(image).empty() && oldest[OriginOf(image)] != &image)) continue;
    if (here.empty()) return &image;
    if (origins.contains(OriginOf(image))) {
      // Of what came there after the newest of here none was taken before.
      if (OriginOf(image) == OriginOf(here.front())) return newest;
      break;
    }
    if (newest != nullptr || !TimeOfTag(image.reference())) continue;
    const std::optional<bool> by_labels = IsLaterByLabels(image, here.front());
    if (by_labels == false) return nullptr;
    newest = &image;
    if (by_labels == true) return newest;
  }
  if (newest == nullptr) return nullptr;
  const bool clocks_wrong =
      ClocksWereWrong(here, /*all_in_order=*/false) || ClocksWereWrong(there, /*all_in_order=*/true);
  if (clocks_wrong && TimeOfTag(here.front().reference())) return ClocksDoNotTell(*newest, here.front());
  return *TimeOfTag(newest->reference()) > MomentOf(here.front()) ? newest : nullptr;
}

}  // namespace rekindle::cli
