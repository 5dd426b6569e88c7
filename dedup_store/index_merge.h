// Keeps the index short: index files are merged as packs come in.
#pragma once

#include "absl/status/status.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// Puts packs that no index file covers into one, together with index files that are not much larger, when
// there are more than a few such packs, or many pages in them (or any, with `all`). Takes the same memory,
// some tens of megabytes, however many pages there are.
absl::Status MergeIndexes(StoreCore* core, bool all);

}  // namespace rekindle::store
