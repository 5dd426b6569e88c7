// What a new image needs of packs that other images brought, held against the catalog once more when the
// image is committed.
//
// The packs are locked from the first look into them on, so gc leaves them. But a node that stalls for longer
// than its file server waits for it loses its locks and is not told, and `fsck --repair` of another process
// drops what is damaged without asking for locks. What only the fingerprints were compared of is never read
// again: without a look at the catalog nobody would notice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "dedup_store/catalog.h"
#include "dedup_store/manifest.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// Not thread-safe. What it is given must outlive it.
class ReferredFrames {
 public:
  // `coming`: the pack that is committed with the image, or was never given to anybody else. `packs`: those
  // of the others that are open.
  ReferredFrames(StoreCore* core, const Manifest& manifest, uint64_t coming,
                 const std::vector<std::shared_ptr<const Pack>>& packs);

  // Aborted: some of it is not in the store any more; this process then uses no more of that. What a call has
  // found to be there costs the next one little, so that it can be asked before and within a transaction.
  absl::Status Check(Catalog::Txn& txn);

 private:
  absl::Status Gone(uint64_t pack, bool all_of_it) const;

  StoreCore* const core_;
  const Manifest& manifest_;
  const uint64_t coming_;
  std::map<uint64_t, std::shared_ptr<const Pack>> packs_;
  std::map<uint64_t, std::shared_ptr<const DeadRecord>> checked_;  // the image needs nothing of these
};

}  // namespace rekindle::store
