// Keeps the index short: index files are merged as packs come in.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// Pages of packs without an index file that are merged at a time.
inline constexpr uint64_t kMostLooseMerged = uint64_t{16} << 20;

// Puts packs that no index file covers into some, together with index files that are not much larger, when
// there are more than a few such packs, or many pages in them (or any, with `all`). A pack that can't be read
// stays without one. Packs of more than `most_loose` pages are merged one after another, so that the time
// grows with the pages only a little faster than their number, unless they are all of one pack.
//
// Takes some tens of megabytes of memory, however many pages there are, and besides a bit for each page of
// packs in which frames are dead or damaged. A page table that is missing is made anew on the way, which
// takes 8 bytes for each page of its pack.
//
// An index file that proves to be damaged is left out, with a warning in the log, and no error.
absl::Status MergeIndexes(StoreCore* core, bool all, uint64_t most_loose = kMostLooseMerged);

}  // namespace rekindle::store
