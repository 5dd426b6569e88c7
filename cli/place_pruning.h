// `rekindle prune --from`: what a place that images are copied to keeps of them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/bucket.h"
#include "cli/bucket_images.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions;

struct PruneElsewhere {
  v1::PruneImagesRequest request;
  // As CopyImage's.
  std::string from;
  std::string bucket;
};

// Between the look at what is there (`before`, of `name`) and the end of the removal another may have put an
// image that builds upon what has gone. `from` is the place's name.
absl::Status WarnOfLost(Bucket& bucket, const Output& output, const std::string& name,
                        const BucketImages& before, const std::string& from);

int PruneImagesElsewhere(const GlobalOptions& globals, const Output& output, const PruneElsewhere& what);

}  // namespace rekindle::cli
