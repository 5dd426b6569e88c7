// Which frames a cache keeps: S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: "FIFO queues are all you need for
// cache eviction", SOSP 2023), counted in bytes. What is new waits in a small queue, a tenth of the cache;
// only what is used again before it reaches the end goes on to the main queue, so a restore that touches
// gigabytes once does not drive out what every restore needs. What fell out of the small queue is remembered
// for a while (the ghosts: names without bytes) and enters the main queue if it comes again.
//
// Pure, and not thread-safe. It counts and chooses; the bytes are its user's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

class CachePolicy {
 public:
  using Key = store::FrameId;

  // `capacity_bytes` sets the sizes of the queues; it is for the user to call Evict before there is more.
  explicit CachePolicy(uint64_t capacity_bytes);
  void SetCapacity(uint64_t capacity_bytes);

  bool Contains(const Key& key) const { return nodes_.contains(key); }
  // `key`, which is not there, comes in. `proven`: it is known to be used often.
  void Insert(const Key& key, uint32_t bytes, bool proven = false);
  // `key`, which is there, is used.
  void Touch(const Key& key);
  // `key`, if it is there, goes and is not remembered.
  void Remove(const Key& key);
  // Takes out what is worth least of that which `may_go` lets go; nullopt when there is nothing.
  std::optional<Key> Evict(const std::function<bool(const Key&)>& may_go);

  uint64_t bytes() const { return small_.bytes + main_.bytes; }
  uint64_t small_bytes() const { return small_.bytes; }
  uint64_t main_bytes() const { return main_.bytes; }
  uint64_t ghost_bytes() const { return ghosts_.bytes; }  // that the remembered ones had
  size_t size() const { return nodes_.size(); }

  // What was used again since it came in or is in the main queue, most valuable first, at most `max` of it.
  std::vector<Key> Hot(size_t max) const;

 private:
  struct Node {
    Key key;
    uint32_t bytes = 0;
    uint8_t uses = 0;  // up to kMaxUses; since it came into its queue, less what it was spared for
    bool in_main = false;
  };
  using Nodes = std::list<Node>;
  struct Queue {
    Nodes nodes;  // the newest first
    uint64_t bytes = 0;
  };

  std::optional<Key> EvictSmall(const std::function<bool(const Key&)>& may_go);
  std::optional<Key> EvictMain(const std::function<bool(const Key&)>& may_go);
  void RememberGhost(const Key& key, uint32_t bytes);
  void ForgetOldGhosts();
  void ForgetGhost(const Key& key);

  uint64_t small_capacity_ = 0;
  uint64_t ghost_capacity_ = 0;
  Queue small_, main_, ghosts_;
  absl::flat_hash_map<Key, Nodes::iterator> nodes_;         // of small_ and main_
  absl::flat_hash_map<Key, Nodes::iterator> ghost_places_;  // of ghosts_
};

}  // namespace rekindle::restore
