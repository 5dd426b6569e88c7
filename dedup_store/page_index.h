// Finds stored pages by fingerprint. The index consists of the packs' own page tables and of index files,
// each of which covers many packs in one sorted array; index files are merged as packs come in, so that a
// look-up asks few places. All of it can be made anew from the packs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// One state of the index. Thread-safe. Packs that it has pointed to stay open, and locked, as long as it
// lives.
class PageIndex {
 public:
  static absl::StatusOr<std::unique_ptr<PageIndex>> Load(StoreCore* core);
  virtual ~PageIndex() = default;

  struct Found {
    std::shared_ptr<const Pack> pack;
    uint32_t page;
  };
  // A live stored page with this fingerprint of which `equal` says that it has the wanted bytes. What can't
  // be read counts as absent: the page is then simply stored once more.
  virtual std::optional<Found> Find(uint64_t fingerprint,
                                    absl::FunctionRef<bool(const Pack&, uint32_t page)> equal) const = 0;
  // Brings near what Find needs for these: most look-ups find nothing, and wait for memory alone.
  virtual void Prefetch(absl::Span<const uint64_t> fingerprints) const = 0;
  // How many stored pages have this fingerprint, by the index alone: no pack is opened. For measurements.
  virtual size_t Count(uint64_t fingerprint) const = 0;
};

}  // namespace rekindle::store
