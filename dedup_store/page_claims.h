// Which new page is being stored by whom, so that images which are written at the same time by one process
// store equal pages once. A writer claims each page before it stores it. Where another writer was faster, the
// page waits until that writer has settled: until its pack is in the catalog, or it has failed. For one whose
// pages are still on their way, perhaps for hours, nobody waits.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle::store {

// Thread-safe.
class PageClaims {
 private:
  static constexpr size_t kShards = 64;

 public:
  class Ticket : public std::enable_shared_from_this<Ticket> {
   public:
    // Waits until the writer has settled; false: it has not within `limit`. A writer settles before it waits
    // for others, so no two wait for each other. True at once for one that is receiving.
    bool AwaitSettled(absl::Duration limit);

   private:
    friend class PageClaims;
    absl::Mutex mutex_;
    bool settled_ ABSL_GUARDED_BY(mutex_) = false;
    std::atomic<bool> receiving_{false};
    uint64_t joined_ = 0, left_ = 0;        // in order of all such events; under PageClaims::mutex_
    std::array<size_t, kShards> claims_{};  // in each shard, under its mutex
  };

  struct Claimed {
    std::shared_ptr<Ticket> other;  // set: another writer is storing a page with this fingerprint
    uint32_t first_ordinal = 0;     // else: the page of this writer that claimed it first; perhaps this one
  };

  std::shared_ptr<Ticket> Join();
  // A writer whose pages come while it stores them. Others take its claims over, and theirs are not kept for
  // it: it has to look at the index anew from time to time.
  std::shared_ptr<Ticket> JoinReceiving();
  // It has all its pages now, and is as those that join at this moment. Its index is to be loaded after it.
  void Received(Ticket& ticket);
  Claimed Claim(Ticket& ticket, uint64_t fingerprint, uint32_t ordinal);
  // What the ticket's writer stored can be found now, or will never be.
  void Settle(Ticket& ticket);
  // A writer ends. Settles it, too. Its claims stay at least until those that joined before have ended: their
  // state of the index is older than what this one stored. They go once they and others are half of all
  // claims, so that each one that goes costs a look at one that stays at most.
  void Leave(Ticket& ticket);
  // At how many claims Leave has looked. For measurements.
  uint64_t looked_at() const { return looked_at_; }

 private:
  struct Entry {
    Ticket* ticket;  // in active_ or departed_
    uint32_t ordinal;
  };
  struct Shard {
    absl::Mutex mutex;
    absl::flat_hash_map<uint64_t, Entry> pages ABSL_GUARDED_BY(mutex);
  };
  Shard shards_[kShards];
  std::atomic<uint64_t> looked_at_{0};
  absl::Mutex mutex_;
  uint64_t events_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<Ticket>> active_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Ticket>> departed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::store
