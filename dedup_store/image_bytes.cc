#include "dedup_store/image_bytes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/prepared.h"

namespace rekindle::store {

namespace {

// A frame is unique or shared as a whole: it is stored, and freed, as one.
class ByteFinder {
 public:
  ByteFinder(const std::shared_ptr<StoreCore>& core, const std::function<bool(const ImageInfo&)>& may_see,
             const std::atomic<bool>* cancel)
      : core_(core), may_see_(may_see), cancel_(cancel) {}

  absl::StatusOr<ImageBytes> Find(absl::string_view image) {
    RK_ASSIGN_OR_RETURN(const ImageRecord record, core_->Resolve(image));
    RK_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(*core_, record));
    RK_RETURN_IF_ERROR(MarkOwn(manifest));
    std::vector<ImageRecordPtr> images;
    {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
      RK_ASSIGN_OR_RETURN(images, txn.ImagesAfter(0));
    }
    std::erase_if(images, [&](const ImageRecordPtr& other) { return other->id == record.id; });
    const absl::Status compared = ReadManifests(
        *core_, images, cancel_, [this](const ImageRecord& other, const absl::StatusOr<Manifest>& others) {
          return CompareWith(other, others);
        });
    RK_RETURN_IF_ERROR(absl::IsCancelled(compared) ? CheckCancelled() : compared);
    std::sort(bytes_.shares.begin(), bytes_.shares.end(), [](const ImageShare& a, const ImageShare& b) {
      return std::pair(b.stored_bytes, a.reference) < std::pair(a.stored_bytes, b.reference);
    });
    bytes_.metadata_bytes = record.info.stats.metadata_bytes;
    Sum(manifest);
    return std::move(bytes_);
  }

 private:
  struct Frame {
    bool own = false;      // this image reaches it
    bool shared = false;   // and another one too
    bool hidden = false;   // which may not be seen
    uint64_t seen_by = 0;  // the last of the others that was found to reach it
  };
  struct OwnPack {
    std::shared_ptr<const Pack> pack;
    std::vector<Frame> frames;
  };

  // Calls `visit(extent, pack)` for all extents that have pages in packs of this image.
  template <typename Visit>
  void ForEachExtent(const Manifest& manifest, Visit visit) {
    auto all_of = [&](const std::vector<Extent>& extents) {
      for (const Extent& extent : extents) {
        if (extent.zero()) continue;
        auto pack = packs_.find(manifest.packs[extent.pack]);
        if (pack != packs_.end()) visit(extent, pack->second);
      }
    };
    for (const PagedObject& object : manifest.objects) all_of(object.extents);
    all_of(manifest.blob_stream);
  }

  // Calls `visit(frame, pages)` for each frame of the extent, with the number of its pages in the extent.
  template <typename Visit>
  static void ForEachFrame(const Extent& extent, OwnPack& own, Visit visit) {
    const Pack& pack = *own.pack;
    const uint64_t end = std::min<uint64_t>(extent.pack_page + extent.pages, pack.pages());
    for (uint64_t page = extent.pack_page; page < end;) {
      const uint32_t frame = pack.FrameOfPage(static_cast<uint32_t>(page));
      const uint64_t next = std::min<uint64_t>(end, pack.FirstPageAfter(frame));
      visit(frame, next - page);
      page = next;
    }
  }

  bool Cancelled() const { return cancel_ != nullptr && *cancel_; }
  absl::Status CheckCancelled() const {
    if (!Cancelled()) return absl::OkStatus();
    return absl::CancelledError("summing up where the bytes of the image are was cancelled");
  }

  absl::Status MarkOwn(const Manifest& manifest) {
    for (uint64_t id : manifest.packs) {
      RK_RETURN_IF_ERROR(CheckCancelled());
      OwnPack& own = packs_[id];
      RK_ASSIGN_OR_RETURN(own.pack, core_->OpenPack(id));
      own.frames.resize(own.pack->frames());
    }
    ForEachExtent(manifest, [&](const Extent& extent, OwnPack& own) {
      ForEachFrame(extent, own, [&](uint32_t frame, uint64_t) { own.frames[frame].own = true; });
    });
    return absl::OkStatus();
  }

  absl::Status CompareWith(const ImageRecord& other, const absl::StatusOr<Manifest>& manifest) {
    const bool visible = !IsPrepared(other.info) && (!may_see_ || may_see_(other.info));
    if (!manifest.ok()) {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
      RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> still, txn.FindImage(other.id));
      // This image can be told of although another one is lost.
      if (still) bytes_.unread.push_back(visible ? other.info.reference : "");
      return absl::OkStatus();
    }
    uint64_t stored = 0;
    ForEachExtent(*manifest, [&](const Extent& extent, OwnPack& own) {
      ForEachFrame(extent, own, [&](uint32_t index, uint64_t) {
        Frame& frame = own.frames[index];
        if (!frame.own || frame.seen_by == other.id) return;
        frame.seen_by = other.id;
        frame.shared = true;
        frame.hidden |= !visible;
        stored += own.pack->frame(index).stored_bytes;
      });
    });
    if (stored > 0 && visible) bytes_.shares.push_back({other.info.reference, stored});
    return absl::OkStatus();
  }

  void Sum(const Manifest& manifest) {
    auto add_zero = [&](const std::vector<Extent>& extents) {
      for (const Extent& extent : extents) {
        bytes_.logical_bytes += extent.pages * kPageSize;
        if (extent.zero()) bytes_.zero_bytes += extent.pages * kPageSize;
      }
    };
    for (const PagedObject& object : manifest.objects) add_zero(object.extents);
    add_zero(manifest.blob_stream);
    ForEachExtent(manifest, [&](const Extent& extent, OwnPack& own) {
      ForEachFrame(extent, own, [&](uint32_t frame, uint64_t pages) {
        (own.frames[frame].shared ? bytes_.shared_bytes : bytes_.unique_bytes) += pages * kPageSize;
      });
    });
    for (const auto& [id, own] : packs_) {
      for (uint32_t i = 0; i < own.frames.size(); ++i) {
        if (!own.frames[i].own) continue;
        const FrameEntry& entry = own.pack->frame(i);
        const uint64_t pages = own.pack->FirstPageAfter(i) - entry.first_page;
        (own.frames[i].shared ? bytes_.shared_stored_bytes : bytes_.unique_stored_bytes) +=
            entry.stored_bytes;
        if (own.frames[i].hidden) bytes_.hidden_stored_bytes += entry.stored_bytes;
        if (IsRaw(entry.codec())) {
          bytes_.raw_bytes += entry.stored_bytes;
        } else {
          bytes_.compressed_from_bytes += pages * kPageSize;
          bytes_.compressed_to_bytes += entry.stored_bytes;
        }
      }
    }
  }

  const std::shared_ptr<StoreCore> core_;
  const std::function<bool(const ImageInfo&)>& may_see_;
  const std::atomic<bool>* const cancel_;
  std::map<uint64_t, OwnPack> packs_;  // those that the image has pages in
  ImageBytes bytes_;
};

}  // namespace

absl::StatusOr<ImageBytes> FindBytes(const std::shared_ptr<StoreCore>& core, absl::string_view image,
                                     const std::function<bool(const ImageInfo&)>& may_see,
                                     const std::atomic<bool>* cancel) {
  return ByteFinder(core, may_see, cancel).Find(image);
}

}  // namespace rekindle::store
