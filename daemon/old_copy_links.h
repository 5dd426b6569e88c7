// What is left of copies from object stores that were broken off (proto/rekindle/v1/copy_link.h).
#pragma once

#include "absl/status/status.h"
#include "daemon/node.h"
#include "dedup_store/store.h"

namespace rekindle::daemon {

// Removes those that were taken in a day or more ago: nobody has tried again.
absl::Status RemoveOldCopyLinks(Node& node, store::Store& store);

}  // namespace rekindle::daemon
