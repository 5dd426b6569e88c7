// Finds stored pages by digest. The index consists of the packs' own digest tables and of index files, each
// of which covers many packs in one sorted array; index files are merged as packs come in, so that a look-up
// asks few places. All of it can be made anew from the packs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// One state of the index. Thread-safe. Packs that it has pointed to stay open, and locked, as long as it
// lives.
class DigestIndex {
 public:
  static absl::StatusOr<std::unique_ptr<DigestIndex>> Load(StoreCore* core);
  virtual ~DigestIndex() = default;

  struct Found {
    std::shared_ptr<const Pack> pack;
    uint32_t page;
  };
  // A live stored page with this digest and fingerprint. What can't be read counts as absent: the page is
  // then simply stored once more.
  virtual std::optional<Found> Find(const Hash128& digest, const Hash128& fingerprint) const = 0;
};

// Puts packs that no index file covers into one, together with index files that are not much larger, when
// there are more than a few such packs (or any, with `all`).
absl::Status MergeIndexes(StoreCore* core, bool all);

// Reads an index file wholly and checks it against its checksums.
absl::Status VerifyIndexFile(StoreCore* core, const IndexRecord& record);

}  // namespace rekindle::store
