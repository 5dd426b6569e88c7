#include "dedup_store/checked_packs.h"

#include <iterator>

#include "base/status.h"

namespace rekindle::store {

void CheckedPacks::Keep(std::shared_ptr<const Pack> pack) {
  const uint64_t id = pack->id();
  bytes_ += BytesOf(*pack);
  packs_.push_front(std::move(pack));
  by_id_[id] = packs_.begin();
  for (auto last = packs_.end(); bytes_ > most_bytes_ && --last != packs_.begin();) {
    if (last->use_count() > 1) continue;
    bytes_ -= BytesOf(**last);
    by_id_.erase((*last)->id());
    last = packs_.erase(last);
  }
}

absl::StatusOr<std::shared_ptr<const Pack>> CheckedPacks::Get(uint64_t id) {
  if (const auto known = by_id_.find(id); known != by_id_.end()) {
    packs_.splice(packs_.begin(), packs_, known->second);
    return packs_.front();
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<const Pack> pack, open_(id));
  Keep(pack);
  return pack;
}

}  // namespace rekindle::store
