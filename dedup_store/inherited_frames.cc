#include "dedup_store/inherited_frames.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "base/status.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

namespace {

// Stands for the pack of an image that is coming.
constexpr uint64_t kComing = std::numeric_limits<uint64_t>::max();

template <typename Map, typename Keys>
void KeepOnly(Map& map, const Keys& keys) {
  std::erase_if(map, [&](const auto& entry) { return keys.count(entry.first) == 0; });
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> InheritedFrames::FindOrphans(StoreCore& core,
                                                                   const std::vector<ImageRecord>& images,
                                                                   const Coming* coming) {
  std::vector<PackRecord> records;
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
    RK_ASSIGN_OR_RETURN(records, txn.Packs());
  }
  std::set<uint64_t> homes, without_home;
  // An image that brought two packs has its manifest in one of them; the time tells whose the other one is.
  std::set<int64_t> times;
  for (const ImageRecord& image : images) {
    homes.insert(image.manifest_pack);
    times.insert(image.info.created_unix_ns);
  }
  if (coming != nullptr) times.insert(coming->created_unix_ns);
  std::vector<uint64_t> orphans;
  for (const PackRecord& record : records) {
    if (record.frames == 0 || homes.count(record.id) > 0) continue;
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
      known = packs_.emplace(record.id, std::move(read)).first;
    }
    if (times.count(known->second.created_unix_ns) == 0) orphans.push_back(record.id);
  }
  KeepOnly(packs_, without_home);
  return orphans;
}

const InheritedFrames::PackIds& InheritedFrames::PacksOf(StoreCore& core, const ImageRecord& image) {
  static const auto* const kNone = new PackIds;
  auto known = packs_of_.find(image.manifest_pack);
  if (known != packs_of_.end()) return known->second;
  auto manifest = ReadManifest(core, image);
  if (!manifest.ok()) return *kNone;
  return packs_of_.emplace(image.manifest_pack, std::move(manifest->packs)).first->second;
}

absl::StatusOr<std::map<uid_t, uint64_t>> InheritedFrames::Measure(StoreCore& core,
                                                                   const std::vector<ImageRecord>& images,
                                                                   const Coming* coming) {
  absl::MutexLock lock(&mutex_);
  std::map<uid_t, uint64_t> bytes;
  RK_ASSIGN_OR_RETURN(const std::vector<uint64_t> orphans, FindOrphans(core, images, coming));
  if (orphans.empty()) return bytes;

  std::map<uint64_t, std::vector<uint64_t>> needed_by;  // the orphans, by images
  for (uint64_t pack : orphans) needed_by[pack];
  auto note = [&](uint64_t image, const PackIds& packs) {
    for (uint64_t pack : packs) {
      if (auto orphan = needed_by.find(pack); orphan != needed_by.end()) orphan->second.push_back(image);
    }
  };
  std::set<uint64_t> homes;
  for (const ImageRecord& image : images) {
    homes.insert(image.manifest_pack);
    note(image.manifest_pack, PacksOf(core, image));
  }
  KeepOnly(packs_of_, homes);
  if (coming != nullptr) note(kComing, coming->manifest->packs);

  struct Search {
    KnownPack* pack = nullptr;
    std::vector<bool> taken;  // of its frames
  };
  std::map<uint64_t, Search> searches;  // in the packs of which it is not known
  std::set<uint64_t> to_read;
  for (const auto& [pack, needing] : needed_by) {
    KnownPack& known = packs_.at(pack);
    const bool of_coming = !needing.empty() && needing.back() == kComing;
    if (known.needed_by == needing && !of_coming) continue;
    known.needed_by = needing;
    known.bytes_of.clear();
    searches[pack] = {&known, std::vector<bool>(known.frames.size())};
    to_read.insert(needing.begin(), needing.end());
  }
  auto take = [&](uint64_t image, const Manifest& manifest) {
    auto all_of = [&](const std::vector<Extent>& extents) {
      for (const Extent& extent : extents) {
        if (extent.zero()) continue;
        auto search = searches.find(manifest.packs[extent.pack]);
        if (search == searches.end()) continue;
        KnownPack& known = *search->second.pack;
        std::vector<bool>& taken = search->second.taken;
        auto frame = std::upper_bound(known.frames.begin(), known.frames.end(), extent.pack_page,
                                      [](uint32_t page, const auto& f) { return page < f.first; });
        if (frame != known.frames.begin()) --frame;
        for (; frame != known.frames.end() && frame->first < extent.pack_page + extent.pages; ++frame) {
          const auto index = static_cast<size_t>(frame - known.frames.begin());
          if (taken[index]) continue;
          taken[index] = true;
          known.bytes_of[image] += frame->second;
        }
      }
    };
    for (const PagedObject& object : manifest.objects) all_of(object.extents);
    all_of(manifest.blob_stream);
  };
  std::map<uint64_t, uid_t> owners;
  for (const ImageRecord& image : images) {
    owners[image.manifest_pack] = image.info.owner;
    if (to_read.count(image.manifest_pack) == 0) continue;
    if (auto manifest = ReadManifest(core, image); manifest.ok()) take(image.manifest_pack, *manifest);
  }
  if (coming != nullptr) {
    owners[kComing] = coming->owner;
    if (to_read.count(kComing) > 0) take(kComing, *coming->manifest);
  }
  for (uint64_t pack : orphans) {
    for (const auto& [image, stored] : packs_.at(pack).bytes_of) bytes[owners.at(image)] += stored;
  }
  return bytes;
}

}  // namespace rekindle::store
