#include "dedup_store/page_claims.h"

#include <algorithm>

#include "base/timed_await.h"

namespace rekindle::store {

bool PageClaims::Ticket::AwaitSettled(absl::Duration limit) {
  if (receiving_) return true;
  absl::MutexLock lock(&mutex_);
  return AwaitUntil(mutex_, absl::Condition(&settled_), Deadline(limit));
}

std::shared_ptr<PageClaims::Ticket> PageClaims::Join() {
  auto ticket = std::make_shared<Ticket>();
  absl::MutexLock lock(&mutex_);
  ticket->joined_ = ++events_;
  active_.push_back(ticket);
  return ticket;
}

std::shared_ptr<PageClaims::Ticket> PageClaims::JoinReceiving() {
  auto ticket = std::make_shared<Ticket>();
  ticket->receiving_ = true;
  ticket->joined_ = UINT64_MAX;  // no claim is older
  absl::MutexLock lock(&mutex_);
  active_.push_back(ticket);
  return ticket;
}

void PageClaims::Received(Ticket& ticket) {
  absl::MutexLock lock(&mutex_);
  ticket.joined_ = ++events_;
  ticket.receiving_ = false;
}

PageClaims::Claimed PageClaims::Claim(Ticket& ticket, uint64_t fingerprint, uint32_t ordinal) {
  const size_t number = fingerprint % kShards;
  Shard& shard = shards_[number];
  absl::MutexLock lock(&shard.mutex);
  auto [it, inserted] = shard.pages.try_emplace(fingerprint, Entry{&ticket, ordinal});
  Entry& entry = it->second;
  if (inserted) ++ticket.claims_[number];
  if (entry.ticket == &ticket) return {nullptr, entry.ordinal};
  if (!entry.ticket->receiving_ || ticket.receiving_) return {entry.ticket->shared_from_this(), ordinal};
  --entry.ticket->claims_[number];
  ++ticket.claims_[number];
  entry = {&ticket, ordinal};
  return {nullptr, ordinal};
}

void PageClaims::Settle(Ticket& ticket) {
  absl::MutexLock lock(&ticket.mutex_);
  ticket.settled_ = true;
}

void PageClaims::Leave(Ticket& ticket) {
  Settle(ticket);
  // Under the lock to the end: one that joins meanwhile must not lose its claims.
  absl::MutexLock lock(&mutex_);
  ticket.left_ = ++events_;
  departed_.push_back(ticket.shared_from_this());
  active_.erase(std::find(active_.begin(), active_.end(), departed_.back()));
  uint64_t oldest = events_ + 1;
  for (const auto& active : active_) oldest = std::min(oldest, active->joined_);
  auto over = std::partition(departed_.begin(), departed_.end(),
                             [&](const auto& departed) { return departed->left_ > oldest; });
  if (over == departed_.end()) return;
  size_t all = 0, going = 0;
  for (size_t i = 0; i < kShards; ++i) {
    absl::MutexLock shard_lock(&shards_[i].mutex);
    all += shards_[i].pages.size();
    for (auto departed = over; departed != departed_.end(); ++departed) going += (*departed)->claims_[i];
  }
  if (!active_.empty() && 2 * going < all) return;
  looked_at_ += all;
  for (Shard& shard : shards_) {
    absl::flat_hash_map<uint64_t, Entry> gone;
    absl::MutexLock shard_lock(&shard.mutex);
    if (active_.empty()) {
      gone.swap(shard.pages);
    } else {
      absl::erase_if(shard.pages, [&](const auto& page) {
        return page.second.ticket->left_ != 0 && page.second.ticket->left_ < oldest;
      });
    }
  }
  departed_.erase(over, departed_.end());
}

}  // namespace rekindle::store
