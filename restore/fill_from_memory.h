// The shortest way for pages that the capture of an image has left in this process's memory: neither read
// from disk nor decompressed.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "dedup_store/image_in_memory.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

// Gives `sink`, from several threads at once, what of `ranges` (ascending, disjoint) is in `pages` (the
// same), but no page of zeros, which the kernel may have taken back. Returns the ranges that are left to be
// read.
absl::StatusOr<std::vector<store::PageRun>> FillFromMemory(const std::vector<store::PagesInMemory>& pages,
                                                           const std::vector<store::PageRun>& ranges,
                                                           const store::ImageReader::PageSink& sink);

}  // namespace rekindle::restore
