#include "dedup_store/blob_cache.h"

namespace rekindle::store {

uint64_t BlobCache::NewReader() {
  absl::MutexLock lock(&mutex_);
  return ++last_reader_;
}

void BlobCache::ForgetReader(uint64_t reader) {
  absl::MutexLock lock(&mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->key.first != reader) {
      ++it;
      continue;
    }
    bytes_ -= it->bytes->size();
    by_key_.erase(it->key);
    it = entries_.erase(it);
  }
}

std::shared_ptr<const std::string> BlobCache::Find(uint64_t reader, uint64_t piece) {
  absl::MutexLock lock(&mutex_);
  const auto known = by_key_.find(Key(reader, piece));
  if (known == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, known->second);
  return known->second->bytes;
}

void BlobCache::Put(uint64_t reader, uint64_t piece, std::shared_ptr<const std::string> bytes) {
  absl::MutexLock lock(&mutex_);
  const Key key(reader, piece);
  if (by_key_.contains(key)) return;
  bytes_ += bytes->size();
  entries_.push_front({key, std::move(bytes)});
  by_key_[key] = entries_.begin();
  while (bytes_ > kMostBytes && entries_.size() > 1) {
    bytes_ -= entries_.back().bytes->size();
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace rekindle::store
