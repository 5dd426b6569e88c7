#include "dedup_store/referred_frames.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::store {

ReferredFrames::ReferredFrames(StoreCore* core, const Manifest& manifest, uint64_t coming,
                               const std::vector<std::shared_ptr<const Pack>>& packs)
    : core_(core), manifest_(manifest), coming_(coming) {
  for (const std::shared_ptr<const Pack>& pack : packs) {
    if (pack != nullptr) packs_.emplace(pack->id(), pack);
  }
}

absl::Status ReferredFrames::Gone(uint64_t pack, bool all_of_it) const {
  return absl::AbortedError(absl::StrCat(
      all_of_it ? "pack " : "a part of pack ", core_->pack_path(pack),
      ", which the image shares with others, was removed while the image was written: `rekindle fsck "
      "--repair` ran meanwhile, or this machine did not reach the store's file server for so long that it "
      "lost its locks. Nothing of the image is left: take it again"));
}

absl::Status ReferredFrames::Check(Catalog::Txn& txn) {
  std::map<uint64_t, std::shared_ptr<const DeadRecord>> news;
  for (const uint64_t id : manifest_.packs) {
    if (id == coming_) continue;
    RK_ASSIGN_OR_RETURN(const std::optional<PackRecord> record, txn.FindPack(id));
    if (!record) {
      core_->ForgetOpenPack(id);
      return Gone(id, true);
    }
    std::shared_ptr<const DeadRecord> dead = txn.SharedDead(id);
    if (dead == nullptr) continue;
    if (const auto known = checked_.find(id); known != checked_.end() && known->second == dead) continue;
    news.emplace(id, std::move(dead));
  }
  if (news.empty()) return absl::OkStatus();

  uint64_t hit = 0;  // a pack
  const auto check = [&](const std::vector<Extent>& extents) {
    for (const Extent& extent : extents) {
      if (extent.zero()) continue;
      const uint64_t id = manifest_.packs[extent.pack];
      const auto found = news.find(id);
      if (found == news.end()) continue;
      const std::vector<bool>& dead = found->second->dead;
      const auto open = packs_.find(id);
      if (open == packs_.end()) {  // our own first pack, all of which is needed
        if (std::find(dead.begin(), dead.end(), true) != dead.end()) hit = id;
        continue;
      }
      const Pack& pack = *open->second;
      const uint64_t end = extent.pack_page + extent.pages;
      for (uint32_t f = pack.FrameOfPage(extent.pack_page);
           f < pack.frames() && pack.frame(f).first_page < end; ++f) {
        if (f >= dead.size() || !dead[f]) continue;
        hit = id;
        core_->damaged_frames().Add({id, f});
      }
    }
  };
  for (const PagedObject& object : manifest_.objects) check(object.extents);
  check(manifest_.blob_stream);
  if (hit != 0) return Gone(hit, false);
  for (auto& [id, dead] : news) checked_[id] = std::move(dead);
  return absl::OkStatus();
}

}  // namespace rekindle::store
