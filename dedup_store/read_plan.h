// Which reads get many frames of packs fast: in the order of the disk, neighbours at once, with more asked of
// the kernel ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dedup_store/pack.h"

namespace rekindle::store {

// Consecutive pages of one frame.
struct WantedPages {
  uint64_t target;  // means something to whoever wants them: an address, a number
  uint32_t pack;    // a position in a list of packs
  uint32_t frame;
  uint32_t page;  // the first one's number within the pack
  uint32_t pages;
};

// A range of one pack that is read at once, and which of the wanted pages lie in it.
struct PackRead {
  uint32_t pack = 0;
  uint64_t offset = 0;
  uint64_t end = 0;
  size_t first_wanted = 0;
  size_t end_wanted = 0;
};

using PackPointers = std::vector<std::shared_ptr<const Pack>>;

// Sorts `wanted` by their place on disk.
std::vector<PackRead> PlanReads(const PackPointers& packs, std::vector<WantedPages>& wanted);

// Does the reads with up to `max_threads` threads, the caller's among them. Each of them gets a function of
// its own from `new_worker`. The first error ends it all and is returned.
using ReadWorker = std::function<absl::Status(const PackRead&)>;
absl::Status RunReads(const PackPointers& packs, absl::Span<const PackRead> reads, size_t max_threads,
                      const std::function<ReadWorker()>& new_worker);

}  // namespace rekindle::store
