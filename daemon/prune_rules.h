// What a request to prune asks for, wherever the images are.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/retention.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// InvalidArgument: nothing says what to keep, or which images are meant.
absl::StatusOr<RetentionRules> RulesOf(const v1::PruneImagesRequest& request);

// InvalidArgument: it is no name of images, without a tag.
absl::Status CheckPrunedName(const std::string& name);

}  // namespace rekindle::daemon
