#include "dedup_store/inherited_frames.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

namespace {

template <typename Take>
void ForEachExtentIn(const Manifest& manifest, const Take& take) {
  const auto all_of = [&](const std::vector<Extent>& extents) {
    for (const Extent& extent : extents) {
      if (!extent.zero()) take(manifest.packs[extent.pack], extent);
    }
  };
  for (const PagedObject& object : manifest.objects) all_of(object.extents);
  all_of(manifest.blob_stream);
}

}  // namespace

uint64_t InheritedFrames::KnownPack::Take(const Extent& extent, std::vector<bool>& taken_now) const {
  uint64_t bytes = 0;
  auto frame = std::upper_bound(frames.begin(), frames.end(), extent.pack_page,
                                [](uint32_t page, const auto& f) { return page < f.first; });
  if (frame != frames.begin()) --frame;
  for (; frame != frames.end() && frame->first < extent.pack_page + extent.pages; ++frame) {
    const auto index = static_cast<size_t>(frame - frames.begin());
    if (taken_now[index]) continue;
    taken_now[index] = true;
    bytes += frame->second;
  }
  return bytes;
}

void InheritedFrames::KnownPack::Forget(uint64_t user) {
  const auto place = std::lower_bound(users.begin(), users.end(), user);
  if (place == users.end() || *place != user) return;
  const bool was_counted = static_cast<size_t>(place - users.begin()) < counted;
  users.erase(place);
  // What counted for it counts for others. One that is to be counted may have some, too: beside one whose
  // manifest could not be read.
  if (bytes_of.contains(user)) return CountAnew();
  if (was_counted) --counted;
}

void InheritedFrames::KnownPack::Add(uint64_t user) {
  const auto place = std::lower_bound(users.begin(), users.end(), user);
  if (place != users.end() && *place == user) return;
  const bool is_last = static_cast<size_t>(place - users.begin()) >= counted;
  users.insert(place, user);
  if (!is_last) CountAnew();
}

void InheritedFrames::KnownPack::CountAnew() {
  counted = 0;
  taken.assign(frames.size(), false);
  bytes_of.clear();
}

const InheritedFrames::KnownImage* InheritedFrames::Find(uint64_t id) const {
  const auto found =
      std::lower_bound(images_.begin(), images_.end(), id,
                       [](const KnownImage& image, uint64_t i) { return image.record->id < i; });
  return found == images_.end() || found->record->id != id ? nullptr : &*found;
}

void InheritedFrames::Forget(const KnownImage& image) {
  for (const uint64_t id : image.packs) {
    if (const auto pack = packs_.find(id); pack != packs_.end()) pack->second.Forget(image.record->id);
  }
}

void InheritedFrames::FollowImages(const std::vector<ImageRecordPtr>& images) {
  std::vector<KnownImage> now;
  now.reserve(images.size());
  auto known = images_.begin();
  for (const ImageRecordPtr& image : images) {
    for (; known != images_.end() && known->record->id < image->id; ++known) Forget(*known);
    KnownImage& one = now.emplace_back();
    if (known != images_.end() && known->record->id == image->id) {
      // A catalog that is made again gives other ids.
      if (known->record->manifest_pack == image->manifest_pack) {
        one = std::move(*known);
      } else {
        Forget(*known);
      }
      ++known;
    }
    one.record = image;
  }
  for (; known != images_.end(); ++known) Forget(*known);
  images_ = std::move(now);
}

absl::Status InheritedFrames::ReadNewImages(StoreCore& core) {
  std::vector<ImageRecordPtr> unread;
  std::vector<KnownImage*> images;
  for (KnownImage& image : images_) {
    if (image.read) continue;
    unread.push_back(image.record);
    images.push_back(&image);
  }
  auto next = images.begin();
  RK_RETURN_IF_ERROR(
      ReadManifests(core, unread, nullptr, [&](const ImageRecord&, absl::StatusOr<Manifest> manifest) {
        KnownImage& image = **next++;
        image.read = manifest.ok();
        if (manifest.ok()) image.packs = std::move(manifest->packs);
        return absl::OkStatus();
      }));
  for (const KnownImage* image : images) {
    for (const uint64_t id : image->packs) {
      if (const auto pack = packs_.find(id); pack != packs_.end()) pack->second.Add(image->record->id);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> InheritedFrames::FindOrphans(StoreCore& core, const Coming* coming) {
  std::vector<PackRecord> records;
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
    RK_ASSIGN_OR_RETURN(records, txn.Packs());
  }
  absl::flat_hash_set<uint64_t> homes, without_home, news;
  // An image that brought two packs has its manifest in one of them; the time tells whose the other one is.
  absl::flat_hash_set<int64_t> times;
  homes.reserve(images_.size());
  times.reserve(images_.size());
  for (const KnownImage& image : images_) {
    homes.insert(image.record->manifest_pack);
    times.insert(image.record->info.created_unix_ns);
  }
  if (coming != nullptr) times.insert(coming->created_unix_ns);
  std::vector<uint64_t> orphans;
  for (const PackRecord& record : records) {
    if (record.frames == 0 || homes.contains(record.id)) continue;
    without_home.insert(record.id);
    auto known = packs_.find(record.id);
    if (known == packs_.end()) {
      auto pack = core.OpenPack(record.id);
      if (!pack.ok()) continue;  // gc took it, or it is lost
      KnownPack read;
      read.created_unix_ns = (*pack)->header().created_unix_ns;
      read.frames.reserve((*pack)->frames());
      for (uint32_t f = 0; f < (*pack)->frames(); ++f) {
        read.frames.emplace_back((*pack)->frame(f).first_page, (*pack)->frame(f).stored_bytes);
      }
      read.CountAnew();
      known = packs_.emplace(record.id, std::move(read)).first;
      news.insert(record.id);
    }
    if (!times.contains(known->second.created_unix_ns)) orphans.push_back(record.id);
  }
  absl::erase_if(packs_, [&](const auto& entry) { return !without_home.contains(entry.first); });
  if (news.empty()) return orphans;
  for (const KnownImage& image : images_) {
    for (const uint64_t pack : image.packs) {
      if (news.contains(pack)) packs_.at(pack).Add(image.record->id);
    }
  }
  return orphans;
}

absl::Status InheritedFrames::Count(StoreCore& core, const std::vector<uint64_t>& orphans) {
  std::set<uint64_t> uncounted;  // images
  absl::flat_hash_map<uint64_t, KnownPack*> incomplete;
  for (const uint64_t id : orphans) {
    KnownPack& pack = packs_.at(id);
    if (pack.counted == pack.users.size()) continue;
    incomplete.emplace(id, &pack);
    uncounted.insert(pack.users.begin() + static_cast<ptrdiff_t>(pack.counted), pack.users.end());
  }
  std::vector<ImageRecordPtr> to_read;
  std::vector<uint64_t> unreadable;
  for (const uint64_t id : uncounted) to_read.push_back(Find(id)->record);
  RK_RETURN_IF_ERROR(ReadManifests(
      core, to_read, nullptr, [&](const ImageRecord& image, const absl::StatusOr<Manifest>& manifest) {
        if (!manifest.ok()) {
          // It is removed just now, or lost; or else it may be read the next time.
          if (!absl::IsNotFound(manifest.status()) && !absl::IsDataLoss(manifest.status()))
            unreadable.push_back(image.id);
          return absl::OkStatus();
        }
        ForEachExtentIn(*manifest, [&](uint64_t id, const Extent& extent) {
          const auto found = incomplete.find(id);
          if (found == incomplete.end()) return;
          KnownPack& pack = *found->second;
          // It may be to be counted for another pack alone.
          const auto first = pack.users.begin() + static_cast<ptrdiff_t>(pack.counted);
          if (!std::binary_search(first, pack.users.end(), image.id)) return;
          if (const uint64_t bytes = pack.Take(extent, pack.taken); bytes > 0)
            pack.bytes_of[image.id] += bytes;
        });
        return absl::OkStatus();
      }));
  for (const auto& [id, pack] : incomplete) {
    const auto is_of = [pack = pack](uint64_t image) {
      return std::binary_search(pack->users.begin(), pack->users.end(), image);
    };
    if (std::none_of(unreadable.begin(), unreadable.end(), is_of)) pack->counted = pack->users.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<uid_t, uint64_t>> InheritedFrames::Measure(StoreCore& core,
                                                                   const std::vector<ImageRecordPtr>& images,
                                                                   const Coming* coming) {
  absl::MutexLock lock(&mutex_);
  std::map<uid_t, uint64_t> bytes;
  FollowImages(images);
  RK_ASSIGN_OR_RETURN(const std::vector<uint64_t> orphans, FindOrphans(core, coming));
  if (orphans.empty()) return bytes;
  RK_RETURN_IF_ERROR(ReadNewImages(core));
  RK_RETURN_IF_ERROR(Count(core, orphans));
  struct Orphan {
    const KnownPack* pack;
    std::vector<bool> taken;
  };
  absl::flat_hash_map<uint64_t, Orphan> left;  // for the coming one
  for (const uint64_t id : orphans) {
    const KnownPack& pack = packs_.at(id);
    for (const auto& [image, stored] : pack.bytes_of) bytes[Find(image)->record->info.owner] += stored;
    if (coming != nullptr) left.emplace(id, Orphan{&pack, pack.taken});
  }
  if (coming == nullptr) return bytes;
  // It is the last one.
  ForEachExtentIn(*coming->manifest, [&](uint64_t id, const Extent& extent) {
    if (const auto orphan = left.find(id); orphan != left.end())
      bytes[coming->owner] += orphan->second.pack->Take(extent, orphan->second.taken);
  });
  return bytes;
}

}  // namespace rekindle::store
