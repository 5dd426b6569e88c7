// The frame tables of the packs of a store that is being checked. All of them may be more than fits in
// memory: of a store of many terabytes they are gigabytes.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/status/statusor.h"
#include "dedup_store/pack.h"

namespace rekindle::store {

// Keeps those that were asked for last, and reads the others again. Not thread-safe.
class CheckedPacks {
 public:
  // Gives a pack that is closed, and DataLoss and so on when it can't be used.
  using Open = std::function<absl::StatusOr<std::unique_ptr<Pack>>(uint64_t id)>;
  // Of more than `most_bytes` only those are kept that somebody still holds, and the one asked for last.
  CheckedPacks(Open open, uint64_t most_bytes) : open_(std::move(open)), most_bytes_(most_bytes) {}

  // One that was just read, and is closed.
  void Keep(std::shared_ptr<const Pack> pack);
  absl::StatusOr<std::shared_ptr<const Pack>> Get(uint64_t id);

 private:
  using Packs = std::list<std::shared_ptr<const Pack>>;
  static uint64_t BytesOf(const Pack& pack) { return uint64_t{pack.frames()} * sizeof(FrameEntry); }

  const Open open_;
  const uint64_t most_bytes_;
  Packs packs_;  // the one that was asked for last comes first
  std::unordered_map<uint64_t, Packs::iterator> by_id_;
  uint64_t bytes_ = 0;  // of all of them
};

}  // namespace rekindle::store
