// What somebody has at the moment, by a key: who asks for the same gets the same object. It keeps nothing
// alive, and takes no more room than what was there at most at once, however much came and went.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace rekindle::store {

// Not thread-safe.
template <typename Key, typename T>
class WeakMap {
 public:
  // Null: nobody has it.
  std::shared_ptr<T> Find(const Key& key) const {
    const auto known = map_.find(key);
    return known == map_.end() ? nullptr : known->second.lock();
  }
  // The one that somebody has by now, else this one.
  std::shared_ptr<T> Put(const Key& key, std::shared_ptr<T> object) {
    if (map_.size() >= look_at_) {
      absl::erase_if(map_, [](const auto& entry) { return entry.second.expired(); });
      look_at_ = std::max(kLeastLooked, 2 * map_.size());
    }
    std::weak_ptr<T>& known = map_[key];
    if (auto other = known.lock()) return other;
    known = object;
    return object;
  }
  void Erase(const Key& key) { map_.erase(key); }
  // With what nobody has any more, as far as that was not noticed yet.
  size_t size() const { return map_.size(); }

 private:
  static constexpr size_t kLeastLooked = 64;
  absl::flat_hash_map<Key, std::weak_ptr<T>> map_;
  size_t look_at_ = kLeastLooked;
};

}  // namespace rekindle::store
