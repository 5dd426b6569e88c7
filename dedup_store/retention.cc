#include "dedup_store/retention.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/image_reference.h"

namespace rekindle::store {

std::vector<RetentionDecision> DecideRetention(std::vector<ImageInfo> images, const RetentionRules& rules,
                                               int64_t now_unix_ns, absl::TimeZone zone) {
  auto group_of = [](const ImageInfo& image) {
    return std::make_tuple(NameOfReference(image.reference), image.owner);
  };
  std::stable_sort(images.begin(), images.end(), [&](const ImageInfo& a, const ImageInfo& b) {
    return std::tuple(group_of(a), b.commit_number) < std::tuple(group_of(b), a.commit_number);
  });
  std::vector<RetainedImage> judged;
  judged.reserve(images.size());
  for (const ImageInfo& image : images) {
    judged.push_back({absl::StrCat(NameOfReference(image.reference), ":", image.owner), image.created_unix_ns,
                      image.created_unix_ns, &image.labels});
  }
  std::vector<std::vector<std::string>> reasons = ReasonsToKeep(judged, rules, now_unix_ns, zone);
  std::vector<RetentionDecision> decisions;
  decisions.reserve(images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    const bool keep = rules.empty() || !reasons[i].empty();
    decisions.push_back({std::move(images[i]), keep, std::move(reasons[i])});
  }
  return decisions;
}

}  // namespace rekindle::store
