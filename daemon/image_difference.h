// What differs between two images, in words of a process's memory areas instead of addresses.
#pragma once

#include <atomic>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/store.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// One row for each area of each process's memory, largest difference first; shared memory and CRIU's own
// files (these as one row) too. An area is known by what it holds ("[heap]", a library's path), not by its
// address: rows of equal names within a process are summed up. `*cancel` ends it soon with Cancelled.
absl::StatusOr<std::vector<v1::AreaDifference>> CompareImages(const store::Store& store, absl::string_view a,
                                                              absl::string_view b,
                                                              const std::atomic<bool>* cancel);

}  // namespace rekindle::daemon
