#include "restore/cache_policy.h"

#include <algorithm>
#include <iterator>

namespace rekindle::restore {

namespace {

// As the paper has them: the small queue's share, how far uses are counted, and how many of them it takes to
// go on to the main queue.
constexpr uint64_t kSmallPart = 10;
constexpr uint8_t kMaxUses = 3;
constexpr uint8_t kUsesToStay = 2;

}  // namespace

CachePolicy::CachePolicy(uint64_t capacity_bytes) { SetCapacity(capacity_bytes); }

void CachePolicy::SetCapacity(uint64_t capacity_bytes) {
  small_capacity_ = capacity_bytes / kSmallPart;
  ghost_capacity_ = capacity_bytes - small_capacity_;
  ForgetOldGhosts();
}

void CachePolicy::Insert(const Key& key, uint32_t bytes, bool proven) {
  const bool to_main = proven || ghost_places_.contains(key);
  ForgetGhost(key);
  Queue& queue = to_main ? main_ : small_;
  queue.nodes.push_front({key, bytes, 0, to_main});
  queue.bytes += bytes;
  nodes_[key] = queue.nodes.begin();
}

void CachePolicy::Touch(const Key& key) {
  Node& node = *nodes_.at(key);
  node.uses = std::min<uint8_t>(kMaxUses, node.uses + 1);
}

void CachePolicy::Remove(const Key& key) {
  auto found = nodes_.find(key);
  if (found == nodes_.end()) return;
  Queue& queue = found->second->in_main ? main_ : small_;
  queue.bytes -= found->second->bytes;
  queue.nodes.erase(found->second);
  nodes_.erase(found);
}

std::optional<CachePolicy::Key> CachePolicy::Evict(const std::function<bool(const Key&)>& may_go) {
  const bool small_first = small_.bytes >= small_capacity_ || main_.nodes.empty();
  std::optional<Key> gone = small_first ? EvictSmall(may_go) : EvictMain(may_go);
  if (!gone) gone = small_first ? EvictMain(may_go) : EvictSmall(may_go);
  return gone;
}

std::optional<CachePolicy::Key> CachePolicy::EvictSmall(const std::function<bool(const Key&)>& may_go) {
  // Each is looked at once: what may not go now is in use, and takes the newest one's place.
  for (size_t left = small_.nodes.size(); left > 0; --left) {
    auto last = std::prev(small_.nodes.end());
    if (last->uses >= kUsesToStay) {
      last->uses = 0;
      last->in_main = true;
      small_.bytes -= last->bytes;
      main_.bytes += last->bytes;
      main_.nodes.splice(main_.nodes.begin(), small_.nodes, last);
      continue;
    }
    if (!may_go(last->key)) {
      small_.nodes.splice(small_.nodes.begin(), small_.nodes, last);
      continue;
    }
    const Node node = *last;
    Remove(node.key);
    RememberGhost(node.key, node.bytes);
    return node.key;
  }
  return std::nullopt;
}

std::optional<CachePolicy::Key> CachePolicy::EvictMain(const std::function<bool(const Key&)>& may_go) {
  for (size_t left = main_.nodes.size() * (kMaxUses + 1); left > 0; --left) {
    auto last = std::prev(main_.nodes.end());
    if (last->uses > 0 || !may_go(last->key)) {
      if (last->uses > 0) --last->uses;
      main_.nodes.splice(main_.nodes.begin(), main_.nodes, last);
      continue;
    }
    const Key key = last->key;
    Remove(key);
    return key;
  }
  return std::nullopt;
}

void CachePolicy::RememberGhost(const Key& key, uint32_t bytes) {
  ForgetGhost(key);
  ghosts_.nodes.push_front({key, bytes, 0, false});
  ghosts_.bytes += bytes;
  ghost_places_[key] = ghosts_.nodes.begin();
  ForgetOldGhosts();
}

void CachePolicy::ForgetOldGhosts() {
  while (ghosts_.bytes > ghost_capacity_) {
    const Key oldest = ghosts_.nodes.back().key;
    ForgetGhost(oldest);
  }
}

void CachePolicy::ForgetGhost(const Key& key) {
  auto found = ghost_places_.find(key);
  if (found == ghost_places_.end()) return;
  ghosts_.bytes -= found->second->bytes;
  ghosts_.nodes.erase(found->second);
  ghost_places_.erase(found);
}

std::vector<CachePolicy::Key> CachePolicy::Hot(size_t max) const {
  std::vector<const Node*> hot;
  for (const Node& node : main_.nodes) hot.push_back(&node);
  for (const Node& node : small_.nodes) {
    if (node.uses > 0) hot.push_back(&node);
  }
  // Of equal uses the main queue's come first, and of these the newest.
  std::stable_sort(hot.begin(), hot.end(), [](const Node* a, const Node* b) { return a->uses > b->uses; });
  std::vector<Key> keys;
  for (size_t i = 0; i < std::min(max, hot.size()); ++i) keys.push_back(hot[i]->key);
  return keys;
}

}  // namespace rekindle::restore
