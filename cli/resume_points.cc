#include "cli/resume_points.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

// When it was taken is known: a tag that was given later has no such label, and what was copied here has come
// here later.
bool IsSure(const v1::Image& image) {
  return TimeOfTag(image.reference()).has_value() ||
         (image.labels().contains(v1::kSupervisedNumberLabel) && !image.labels().contains(v1::kOriginLabel));
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
  const auto newer = [](const v1::Image& a, const v1::Image& b) { return MomentOf(a) > MomentOf(b); };
  std::stable_sort(images.begin(), images.end(), newer);
  std::map<std::string, size_t> oldest;  // of each digest
  for (size_t i = 0; i < images.size(); ++i) oldest[images[i].digest()] = i;
  std::vector<v1::Image> points;
  for (size_t i = 0; i < images.size(); ++i) {
    if (images[i].digest().empty() || oldest[images[i].digest()] == i) points.push_back(std::move(images[i]));
  }
  const auto sure = std::find_if(points.begin(), points.end(), IsSure);
  if (sure == points.end() || sure == points.begin()) return points;
  return absl::FailedPreconditionError(
      absl::StrCat("it can't be told whether ", points.front().reference(), " or ", sure->reference(),
                   " shows the job further: the first one's name was given to it later, whenever it was "
                   "taken. Give one of "
                   "them with --from, or remove the name that is not to count ('rekindle rm ",
                   points.front().reference(), "'; 'rekindle tag' gives it another one)"));
}

const v1::Image* NewerElsewhere(const std::vector<v1::Image>& here, const std::vector<v1::Image>& there) {
  const v1::Image* newest = nullptr;
  for (const v1::Image& image : there) {
    if (image.damaged() || (!here.empty() && !TimeOfTag(image.reference()))) continue;
    if (newest == nullptr || MomentOf(image) > MomentOf(*newest)) newest = &image;
  }
  if (newest == nullptr || here.empty()) return newest;
  const bool is_here = std::any_of(
      here.begin(), here.end(), [&](const v1::Image& image) { return MomentOf(image) >= MomentOf(*newest); });
  return is_here ? nullptr : newest;
}

}  // namespace rekindle::cli
