#include "dedup_store/retention.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace rekindle::store {

namespace {

std::string Duration(int64_t ns) {
  struct Unit {
    int64_t seconds;
    const char* letter;
  };
  constexpr Unit kUnits[] = {{7 * 24 * 3600, "w"}, {24 * 3600, "d"}, {3600, "h"}, {60, "m"}};
  const int64_t seconds = ns / 1'000'000'000;
  for (const Unit& unit : kUnits) {
    if (seconds % unit.seconds == 0) return absl::StrCat(seconds / unit.seconds, unit.letter);
  }
  return absl::StrCat(seconds, "s");
}

}  // namespace

std::string NameOfReference(const std::string& reference) {
  return reference.substr(0, reference.rfind(':'));
}

std::vector<RetentionDecision> DecideRetention(std::vector<ImageInfo> images, const RetentionRules& rules,
                                               int64_t now_unix_ns) {
  auto group_of = [](const ImageInfo& image) {
    return std::make_tuple(NameOfReference(image.reference), image.owner);
  };
  std::stable_sort(images.begin(), images.end(), [&](const ImageInfo& a, const ImageInfo& b) {
    return std::tuple(group_of(a), b.commit_number) < std::tuple(group_of(b), a.commit_number);
  });
  std::vector<RetentionDecision> decisions;
  decisions.reserve(images.size());
  uint64_t position = 0;
  for (ImageInfo& image : images) {
    const bool same_group = !decisions.empty() && group_of(decisions.back().image) == group_of(image);
    position = same_group ? position + 1 : 1;
    RetentionDecision decision;
    if (position <= rules.keep_last) {
      decision.reasons.push_back(absl::StrCat("last ", rules.keep_last, ": number ", position));
    }
    // A clock that went back must not make an image look old: one of the future is kept.
    if (rules.keep_within_ns > 0 && image.created_unix_ns >= now_unix_ns - rules.keep_within_ns) {
      decision.reasons.push_back(absl::StrCat("within ", Duration(rules.keep_within_ns)));
    }
    for (const auto& [key, value] : rules.keep_labels) {
      auto label = image.labels.find(key);
      if (label != image.labels.end() && label->second == value) {
        decision.reasons.push_back(absl::StrCat("label ", key, "=", value));
      }
    }
    decision.keep = rules.empty() || !decision.reasons.empty();
    decision.image = std::move(image);
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

}  // namespace rekindle::store
