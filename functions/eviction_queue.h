// Things in order of what they are worth, least first. A thing's key may rise while it waits: the user sees
// the old one when it comes to the top and puts it back with the new one, which is cheaper than moving it at
// each use. When a key falls, a new entry with a new version goes in and the old one is void.
//
// Void entries are thrown out when they may be half of all.
//
// Pure, not thread-safe. O(log n), amortized.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "functions/keep_alive_profile.h"

namespace rekindle::functions {

class EvictionQueue {
 public:
  struct Entry {
    double key = 0;
    Thing thing;
    uint32_t version = 0;
  };

  // `is_void` says which entries are.
  template <typename IsVoid>
  void Push(const Entry& entry, IsVoid&& is_void) {
    if (heap_.size() >= full_) {
      std::erase_if(heap_, is_void);
      std::make_heap(heap_.begin(), heap_.end(), Later);
      full_ = 2 * heap_.size() + kLeast;
    }
    heap_.push_back(entry);
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }
  const Entry& Top() const { return heap_.front(); }
  void Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    heap_.pop_back();
  }
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }

 private:
  // Equal keys: by name, so that the order does not depend on how the heap was filled.
  static bool Later(const Entry& a, const Entry& b) {
    if (a.key != b.key) return a.key > b.key;
    if (a.thing.kind != b.thing.kind) return a.thing.kind > b.thing.kind;
    if (a.thing.owner != b.thing.owner) return a.thing.owner > b.thing.owner;
    return a.version > b.version;
  }

  static constexpr size_t kLeast = 256;
  std::vector<Entry> heap_;
  size_t full_ = kLeast;
};

}  // namespace rekindle::functions
