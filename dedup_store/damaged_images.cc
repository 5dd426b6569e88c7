#include "dedup_store/damaged_images.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "dedup_store/coding.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/manifest.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

namespace {

using Part = ScrubDamage::Part;

// Of a manifest that could not be read: its disk is not asked at each look at the images.
constexpr absl::Duration kReadAgainAfter = absl::Minutes(5);

class Damage {
 public:
  explicit Damage(absl::Span<const ScrubDamage> damage) {
    for (const ScrubDamage& each : damage) {
      if (each.part == Part::kChunk)
        pages_[each.pack].push_back({each.first_page, each.first_page + each.pages});
      if (each.part == Part::kPack) packs_.insert(each.pack);
      if (each.part == Part::kPack || each.part == Part::kManifest) manifests_.insert(each.pack);
    }
  }
  bool empty() const { return pages_.empty() && manifests_.empty(); }
  bool HasManifest(uint64_t pack) const { return manifests_.count(pack) > 0; }
  bool IsIn(uint64_t pack) const { return packs_.count(pack) > 0 || pages_.count(pack) > 0; }
  bool Hits(const Manifest& manifest) const {
    return Hits(manifest, manifest.blob_stream) ||
           std::any_of(manifest.objects.begin(), manifest.objects.end(),
                       [&](const PagedObject& object) { return Hits(manifest, object.extents); });
  }
  std::string Encode() const {
    Encoder out;
    for (const auto& [pack, intervals] : pages_) {
      out.U64(pack);
      out.U64(intervals.size());
      for (const PageInterval& interval : intervals) out.U64(uint64_t{interval.first} << 32 | interval.end);
    }
    for (const std::set<uint64_t>* ids : {&packs_, &manifests_}) {
      out.U64(ids->size());
      for (const uint64_t id : *ids) out.U64(id);
    }
    return out.Take();
  }

 private:
  struct PageInterval {
    uint32_t first, end;
  };
  bool Hits(const Manifest& manifest, const std::vector<Extent>& extents) const {
    return std::any_of(extents.begin(), extents.end(), [&](const Extent& e) {
      if (e.zero()) return false;
      const uint64_t pack = manifest.packs[e.pack];
      if (packs_.count(pack)) return true;
      const auto in_pack = pages_.find(pack);
      return in_pack != pages_.end() &&
             std::any_of(in_pack->second.begin(), in_pack->second.end(), [&](const PageInterval& interval) {
               return e.pack_page < interval.end && interval.first < e.pack_page + e.pages;
             });
    });
  }
  std::map<uint64_t, std::vector<PageInterval>> pages_;
  std::set<uint64_t> packs_, manifests_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> DamagedImages::Find(StoreCore& core,
                                                             absl::Span<const ScrubDamage> of) {
  const Damage damage(of);
  std::vector<std::string> found;
  if (damage.empty()) return found;
  std::vector<ImageRecordPtr> images;
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
    RK_ASSIGN_OR_RETURN(images, txn.ImagesAfter(0));
  }
  uint64_t number = 0;
  std::set<uint64_t> hit;  // by the packs of the manifests
  std::vector<ImageRecordPtr> unknown;
  {
    absl::MutexLock lock(&mutex_);
    if (std::string encoded = damage.Encode(); encoded != damage_) {
      damage_ = std::move(encoded);
      ++number_;
    }
    number = number_;
    const absl::Time now = SteadyNow();
    std::set<uint64_t> homes;
    for (const ImageRecordPtr& image : images) {
      const uint64_t home = image->manifest_pack;
      homes.insert(home);
      if (damage.HasManifest(home)) {
        hit.insert(home);
        continue;
      }
      const auto known = images_.find(home);
      if (known != images_.end() && known->second.asked != number &&
          std::none_of(known->second.packs.begin(), known->second.packs.end(),
                       [&](uint64_t pack) { return damage.IsIn(pack); })) {
        known->second.asked = number;
        known->second.hit = false;
      }
      if (known != images_.end() && known->second.asked == number) {
        if (known->second.hit) hit.insert(home);
        continue;
      }
      const auto unread = unread_.find(home);
      if (unread == unread_.end() || now - unread->second >= kReadAgainAfter) unknown.push_back(image);
    }
    const auto gone = [&](const auto& entry) { return homes.count(entry.first) == 0; };
    std::erase_if(images_, gone);
    std::erase_if(unread_, gone);
  }
  // Without the lock: who asks meanwhile reads them too, and waits for nobody's disk.
  std::vector<std::pair<uint64_t, Known>> notes;
  std::vector<uint64_t> unread;
  const auto note = [&](const ImageRecord& image, absl::StatusOr<Manifest> manifest) -> absl::Status {
    if (!manifest.ok()) {  // removed meanwhile; or lost too, for another reason
      unread.push_back(image.manifest_pack);
      return absl::OkStatus();
    }
    const bool has_it = damage.Hits(*manifest);
    if (has_it) hit.insert(image.manifest_pack);
    notes.emplace_back(image.manifest_pack, Known{std::move(manifest->packs), number, has_it});
    return absl::OkStatus();
  };
  RK_RETURN_IF_ERROR(ReadManifests(core, unknown, nullptr, note));
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [home, read] : notes) {
      unread_.erase(home);
      // Who has asked of later damage knows it better.
      Known& known = images_[home];
      if (known.asked <= number) known = std::move(read);
    }
    for (const uint64_t home : unread) unread_[home] = SteadyNow();
  }
  for (const ImageRecordPtr& image : images) {
    if (hit.count(image->manifest_pack) > 0) found.push_back(image->info.reference);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace rekindle::store
