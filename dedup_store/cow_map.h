// An ordered map whose copies share what they have in common: copying one of 100,000 entries takes
// microseconds, and changing the copy leaves the original as it is.
//
// Whoever changes a map names itself by a number that nobody else uses (`owner`): parts that carry another
// number are copied before the change. A map that several threads read must not be changed any more.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace rekindle::store {

template <typename Key, typename Value>
class CowMap {
 public:
  size_t size() const { return size_; }

  const Value* Find(const Key& key) const {
    if (chunks_.empty()) return nullptr;
    const auto& items = chunks_[ChunkOf(key)]->items;
    auto it = LowerBound(items, key);
    return it != items.end() && !(key < it->first) ? &it->second : nullptr;
  }

  void Put(Key key, Value value, uint64_t owner) {
    if (chunks_.empty()) chunks_.push_back(std::make_shared<Chunk>(Chunk{owner, {}}));
    const size_t c = ChunkOf(key);
    Chunk* chunk = Own(c, owner);
    auto it = LowerBound(chunk->items, key);
    if (it != chunk->items.end() && !(key < it->first)) {
      it->second = std::move(value);
      return;
    }
    ++size_;
    if (chunk->items.size() < kMaxItems) {
      chunk->items.insert(it, {std::move(key), std::move(value)});
      return;
    }
    // Ascending keys fill chunks to the brim; others split theirs in the middle.
    const bool at_end = it == chunk->items.end() && c + 1 == chunks_.size();
    auto upper = std::make_shared<Chunk>(Chunk{owner, {}});
    if (!at_end) {
      auto middle = chunk->items.begin() + kMaxItems / 2;
      const size_t position = static_cast<size_t>(it - chunk->items.begin());
      upper->items.assign(std::make_move_iterator(middle), std::make_move_iterator(chunk->items.end()));
      chunk->items.erase(middle, chunk->items.end());
      Chunk* target = position <= kMaxItems / 2 ? chunk : upper.get();
      auto place = LowerBound(target->items, key);
      target->items.insert(place, {std::move(key), std::move(value)});
    } else {
      upper->items.push_back({std::move(key), std::move(value)});
    }
    chunks_.insert(chunks_.begin() + static_cast<ptrdiff_t>(c) + 1, std::move(upper));
  }

  void Erase(const Key& key, uint64_t owner) {
    if (Find(key) == nullptr) return;
    const size_t c = ChunkOf(key);
    Chunk* chunk = Own(c, owner);
    chunk->items.erase(LowerBound(chunk->items, key));
    if (chunk->items.empty()) chunks_.erase(chunks_.begin() + static_cast<ptrdiff_t>(c));
    --size_;
  }

  // In ascending order from the first key that is not below `from` on, while `each(key, value)` returns true.
  template <typename Each>
  void Scan(const Key& from, const Each& each) const {
    if (chunks_.empty()) return;
    size_t c = ChunkOf(from);
    auto it = LowerBound(chunks_[c]->items, from);
    for (;; ++it) {
      while (it == chunks_[c]->items.end()) {
        if (++c == chunks_.size()) return;
        it = chunks_[c]->items.begin();
      }
      if (!each(it->first, it->second)) return;
    }
  }

 private:
  static constexpr size_t kMaxItems = 128;
  struct Chunk {
    uint64_t owner;
    std::vector<std::pair<Key, Value>> items;  // never empty but while one is being put in
  };

  template <typename Items>
  static auto LowerBound(Items& items, const Key& key) {
    return std::lower_bound(items.begin(), items.end(), key,
                            [](const auto& item, const Key& k) { return item.first < k; });
  }

  // The last chunk whose first key is not above `key`, or the first one.
  size_t ChunkOf(const Key& key) const {
    auto it = std::upper_bound(chunks_.begin(), chunks_.end(), key, [](const Key& k, const auto& chunk) {
      return !chunk->items.empty() && k < chunk->items.front().first;
    });
    return it == chunks_.begin() ? 0 : static_cast<size_t>(it - chunks_.begin()) - 1;
  }

  Chunk* Own(size_t c, uint64_t owner) {
    if (chunks_[c]->owner != owner) {
      chunks_[c] = std::make_shared<Chunk>(*chunks_[c]);
      chunks_[c]->owner = owner;
    }
    return chunks_[c].get();
  }

  std::vector<std::shared_ptr<Chunk>> chunks_;
  size_t size_ = 0;
};

}  // namespace rekindle::store
