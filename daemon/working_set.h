// What was recorded of the memory that clones of an image touch first, as part of `inspect`.
#pragma once

#include "dedup_store/store.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// Of an image that a capture made. What can't be read becomes a warning.
void DescribeWorkingSet(store::Store& store, const store::ImageInfo& info,
                        v1::InspectImageResponse& response);

}  // namespace rekindle::daemon
