#include "cli/bucket_retention.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace rekindle::cli {

std::vector<BucketVerdict> DecideBucketRetention(const BucketImages& images, const RetentionRules& rules,
                                                 const BucketLabels* labels, int64_t now_unix_ns,
                                                 absl::Time unfinished_before, absl::TimeZone zone) {
  std::vector<BucketVerdict> verdicts;
  std::vector<RetainedImage> judged;
  std::vector<size_t> places;  // of those, in `verdicts`
  // Parts of images that are there: they stay, or go, with these.
  std::set<std::string> parts;
  for (const BucketImage& image : images.complete()) {
    for (const BucketImage& part : images.PartsOf(image)) parts.insert(part.ImageObject());
  }
  for (const BucketImage& image : images.complete()) {
    BucketVerdict& verdict = verdicts.emplace_back();
    verdict.image = image;
    verdict.usable = images.HasChain(image.origin) && !IsStrayLink(image);
    if (!verdict.usable) {
      if (image.written >= unfinished_before && !parts.contains(image.ImageObject()))
        verdict.reasons.emplace_back("it was put there a short time ago: what it builds upon may come");
      continue;
    }
    RetainedImage& one = judged.emplace_back();
    one.unix_ns = image.created_unix_ns;
    one.there_since_unix_ns = std::max(image.created_unix_ns, absl::ToUnixNanos(image.written));
    if (labels != nullptr && !rules.keep_labels.empty()) {
      const auto found = labels->find({image.origin, image.tag});
      if (found == labels->end()) {
        verdict.reasons.emplace_back("its labels can't be read");
      } else {
        one.labels = &found->second;
      }
    }
    places.push_back(verdicts.size() - 1);
  }
  const std::vector<std::vector<std::string>> reasons = ReasonsToKeep(judged, rules, now_unix_ns, zone);
  for (size_t i = 0; i < places.size(); ++i) {
    std::vector<std::string>& of_one = verdicts[places[i]].reasons;
    of_one.insert(of_one.begin(), reasons[i].begin(), reasons[i].end());
  }
  // By the objects of what is needed: for what.
  std::map<std::string, std::string> needed;
  const auto need_below = [&](const std::string& origin, const std::string& what) {
    for (const BucketImage& link : images.Chain(origin)) needed.try_emplace(link.ImageObject(), what);
  };
  for (const BucketVerdict& verdict : verdicts) {
    if (!verdict.reasons.empty()) need_below(verdict.image.origin, verdict.image.tag);
  }
  for (const BucketImage& image : images.incomplete()) {
    if (image.written >= unfinished_before && !image.base.empty())
      need_below(image.base, absl::StrCat(image.tag, ", which is on its way,"));
  }
  for (BucketVerdict& verdict : verdicts) {
    const auto for_what = needed.find(verdict.image.ImageObject());
    if (verdict.reasons.empty() && for_what != needed.end())
      verdict.reasons.push_back(absl::StrCat(for_what->second, " builds upon it"));
    verdict.keep = !verdict.reasons.empty();
  }
  return verdicts;
}

}  // namespace rekindle::cli
