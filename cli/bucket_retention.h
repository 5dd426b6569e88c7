// Which copies an object store keeps. Pure: no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/retention.h"
#include "cli/bucket_images.h"
#include "cli/bucket_jobs.h"

namespace rekindle::cli {

struct BucketVerdict {
  BucketImage image;
  bool usable = true;  // what it builds upon is there, too
  bool keep = true;
  std::vector<std::string> reasons;  // why it is kept
};

using BucketLabels = std::map<BucketKey, std::map<std::string, std::string>>;

// Of one name, newest first. What an image that stays builds upon stays with it, and so do what was put there
// not before `unfinished_before` and can't be used, for it may be on its way, and what such a copy builds
// upon. Rules of periods go by when an image was taken; none is older than its copy. `labels` null: rules of
// labels keep nothing yet; else an image that is not among them stays.
std::vector<BucketVerdict> DecideBucketRetention(const BucketImages& images, const RetentionRules& rules,
                                                 const BucketLabels* labels, int64_t now_unix_ns,
                                                 absl::Time unfinished_before, absl::TimeZone zone);

}  // namespace rekindle::cli
