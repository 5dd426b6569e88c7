// Numbered things of a size, in order of their last use.
#pragma once

#include <cstdint>
#include <vector>

#include "functions/keep_alive_profile.h"

namespace rekindle::functions {

// Not thread-safe. O(1).
class LruSet {
 public:
  void Add(uint64_t bytes) {
    nodes_.push_back({bytes, 0, kNone, kNone, false});
  }  // the next number; not in the set
  bool Contains(uint32_t id) const { return nodes_[id].in; }
  bool empty() const { return first_ == kNone; }
  uint64_t bytes() const { return bytes_; }
  uint64_t BytesOf(uint32_t id) const { return nodes_[id].bytes; }
  uint32_t Oldest() const { return first_; }
  Micros OldestUse() const { return nodes_[first_].used; }

  void Use(uint32_t id, Micros now) {
    if (nodes_[id].in) Remove(id);
    Node& node = nodes_[id];
    node = {node.bytes, now, last_, kNone, true};
    (last_ == kNone ? first_ : nodes_[last_].next) = id;
    last_ = id;
    bytes_ += node.bytes;
  }
  void Remove(uint32_t id) {
    Node& node = nodes_[id];
    (node.previous == kNone ? first_ : nodes_[node.previous].next) = node.next;
    (node.next == kNone ? last_ : nodes_[node.next].previous) = node.previous;
    node.in = false;
    bytes_ -= node.bytes;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    uint64_t bytes = 0;
    Micros used = 0;
    uint32_t previous = kNone, next = kNone;
    bool in = false;
  };
  std::vector<Node> nodes_;
  uint32_t first_ = kNone, last_ = kNone;
  uint64_t bytes_ = 0;
};

}  // namespace rekindle::functions
