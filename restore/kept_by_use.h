// What is made once and kept for the next ones that need it: the last used, within bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rekindle::restore {

// By name. Not thread-safe: what has to go is given back, to be destroyed without the owner's lock.
template <typename T>
class KeptByUse {
 public:
  using Gone = std::vector<std::shared_ptr<T>>;

  explicit KeptByUse(size_t most) : most_(most) {}

  // Null: it is not there.
  std::shared_ptr<T> Use(const std::string& name) {
    const auto at = kept_.find(name);
    if (at == kept_.end()) return nullptr;
    at->second.last_use = ++uses_;
    return at->second.value;
  }
  // The same, which is no use of it.
  std::shared_ptr<T> Find(const std::string& name) const {
    const auto at = kept_.find(name);
    return at == kept_.end() ? nullptr : at->second.value;
  }

  // In place of what has the name. `bytes`: of memory that only this needs; of all together no more than
  // `most_bytes` is kept, so that one with more than that is not. Those go that were used the longest time
  // ago.
  Gone Keep(const std::string& name, std::shared_ptr<T> value, uint64_t bytes, uint64_t most_bytes) {
    Gone gone = Remove(name);
    if (bytes > most_bytes) return gone;
    uint64_t sum = bytes;
    for (const auto& [other, kept] : kept_) sum += kept.bytes;
    const auto take_oldest = [&](uint64_t at_least) {
      auto oldest = kept_.end();
      for (auto at = kept_.begin(); at != kept_.end(); ++at) {
        if (at->second.bytes < at_least) continue;
        if (oldest == kept_.end() || at->second.last_use < oldest->second.last_use) oldest = at;
      }
      sum -= oldest->second.bytes;
      gone.push_back(std::move(oldest->second.value));
      kept_.erase(oldest);
    };
    while (sum > most_bytes) take_oldest(1);
    while (kept_.size() >= most_) take_oldest(0);
    kept_.emplace(name, Kept{std::move(value), bytes, ++uses_});
    return gone;
  }

  Gone Remove(const std::string& name) {
    Gone gone;
    if (auto kept = kept_.extract(name)) gone.push_back(std::move(kept.mapped().value));
    return gone;
  }

  Gone RemoveAll() {
    Gone gone;
    for (auto& [name, kept] : std::exchange(kept_, {})) gone.push_back(std::move(kept.value));
    return gone;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, kept] : kept_) names.push_back(name);
    return names;
  }

 private:
  struct Kept {
    std::shared_ptr<T> value;
    uint64_t bytes;
    uint64_t last_use;  // ascending from use to use
  };
  const size_t most_;
  std::map<std::string, Kept> kept_;
  uint64_t uses_ = 0;
};

}  // namespace rekindle::restore
