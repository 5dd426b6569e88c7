#include "dedup_store/store.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "dedup_store/freed_frames.h"
#include "dedup_store/image_bytes.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/image_visit.h"
#include "dedup_store/image_writer.h"
#include "dedup_store/limit_guard.h"
#include "dedup_store/maintenance.h"
#include "dedup_store/owner_use.h"
#include "dedup_store/page_table.h"
#include "dedup_store/prepared.h"
#include "dedup_store/removal.h"
#include "dedup_store/scrub.h"
#include "dedup_store/scrub_state.h"
#include "dedup_store/store_core.h"
#include "dedup_store/store_notes.h"
#include "dedup_store/store_use.h"

namespace rekindle::store {

namespace {

// Walks two lists of extents side by side; both are looked at as pages in ascending order.
class ExtentComparer {
 public:
  ExtentComparer(StoreCore* core, const ImageReaderImpl& a, const ImageReaderImpl& b,
                 const std::atomic<bool>* cancel)
      : core_(core), a_(a), b_(b), cancel_(cancel) {}

  absl::Status CheckCancelled() const {
    if (cancel_ == nullptr || !*cancel_) return absl::OkStatus();
    return absl::CancelledError("comparing the images was cancelled");
  }

  absl::Status Compare(const std::vector<Extent>& a, const std::vector<Extent>& b, ObjectDifference& out) {
    for (const Extent& e : a) out.bytes_a += e.pages * kPageSize;
    auto it = a.begin();
    for (const Extent& e : b) {
      RK_RETURN_IF_ERROR(CheckCancelled());
      out.bytes_b += e.pages * kPageSize;
      for (uint64_t page = e.page; page < e.page + e.pages;) {
        while (it != a.end() && it->page + it->pages <= page) ++it;
        if (it == a.end() || it->page > page) {
          uint64_t end = it == a.end() ? e.page + e.pages : std::min(e.page + e.pages, it->page);
          AddChanged(out, page, end - page);
          page = end;
          continue;
        }
        uint64_t end = std::min(e.page + e.pages, it->page + it->pages);
        for (; page < end; ++page) {
          if (Equal(*it, e, page)) {
            out.equal_bytes += kPageSize;
          } else {
            AddChanged(out, page, 1);
          }
        }
      }
    }
    return CheckCancelled();
  }

 private:
  bool Equal(const Extent& a, const Extent& b, uint64_t page) {
    if (a.zero() || b.zero()) return a.zero() && b.zero();
    auto page_a = static_cast<uint32_t>(a.pack_page + (page - a.page));
    auto page_b = static_cast<uint32_t>(b.pack_page + (page - b.page));
    const Pack& pack_a = *a_.packs()[a.pack];
    const Pack& pack_b = *b_.packs()[b.pack];
    if (pack_a.id() == pack_b.id() && page_a == page_b) return true;
    const uint64_t fingerprint = TableOf(pack_a).fingerprints()[page_a];
    return fingerprint != 0 && fingerprint == TableOf(pack_b).fingerprints()[page_b];
  }
  const PageTable& TableOf(const Pack& pack) {
    auto [it, inserted] = tables_.try_emplace(pack.id());
    if (inserted) it->second = PageTable::Load(core_, pack);
    return it->second;
  }
  static void AddChanged(ObjectDifference& out, uint64_t page, uint64_t pages) {
    uint64_t address = page * kPageSize;
    if (!out.changed.empty()) {
      PageRun& last = out.changed.back();
      if (last.address + last.pages * kPageSize == address) {
        last.pages += pages;
        return;
      }
    }
    out.changed.push_back({address, pages, false});
  }

  StoreCore* const core_;
  const ImageReaderImpl& a_;
  const ImageReaderImpl& b_;
  const std::atomic<bool>* const cancel_;
  std::map<uint64_t, PageTable> tables_;
};

class StoreImpl : public Store {
 public:
  explicit StoreImpl(std::shared_ptr<StoreCore> core) : core_(std::move(core)) {}

  const std::shared_ptr<StoreCore>& core() const { return core_; }

  const std::string& path() const override { return core_->path(); }
  std::string id() const override { return IdOf(core_->identity()); }
  absl::Status CheckIsThere() const override { return core_->CheckIsThere(); }
  absl::Status CheckReadable() const override {
    RK_RETURN_IF_ERROR(core_->CheckIsThere());
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().ReadNow());
    RK_ASSIGN_OR_RETURN(const std::vector<PackRecord> packs, txn.Packs());
    return core_->CheckSomePackIsThere(packs);
  }
  bool WasRemoved() const override { return core_->WasRemoved(); }

  absl::StatusOr<std::unique_ptr<ImageWriter>> NewImage(const NewImageOptions& options) override {
    return NewImageWriter(core_, options);
  }

  absl::StatusOr<std::unique_ptr<ImageReader>> OpenImage(absl::string_view image) const override {
    RK_ASSIGN_OR_RETURN(std::unique_ptr<ImageReaderImpl> reader, OpenReader(image));
    return std::unique_ptr<ImageReader>(std::move(reader));
  }

  absl::StatusOr<ImageInfo> Find(absl::string_view image, const MaySee& may_see) const override {
    RK_ASSIGN_OR_RETURN(ImageRecord record, core_->Resolve(image, may_see));
    return std::move(record.info);
  }

  absl::StatusOr<std::optional<ImageInfo>> FindByName(absl::string_view reference) const override {
    return core_->FindByName(reference);
  }

  absl::StatusOr<std::vector<ImageInfo>> List(
      const std::function<bool(const ImageInfo&)>& wanted) const override {
    std::vector<ImageInfo> infos;
    RK_RETURN_IF_ERROR(VisitImages(*this, wanted, [&infos](const ImageInfo& info) {
      infos.push_back(info);
      return true;
    }));
    return infos;
  }

  absl::StatusOr<std::vector<PreparedImage>> ListPrepared() const override {
    return store::ListPrepared(*core_);
  }
  absl::StatusOr<ImageInfo> PublishPrepared(absl::string_view id) override {
    return store::PublishPrepared(*core_, id);
  }
  absl::Status RemovePrepared(absl::string_view id) override { return store::RemovePrepared(*core_, id); }

  absl::Status Remove(absl::string_view image,
                      const std::function<absl::Status(const ImageInfo&)>& may) override {
    RK_RETURN_IF_ERROR(core_->CheckWritable());
    MaySee may_go;
    if (may) may_go = [&may](const ImageInfo& info) { return may(info).ok(); };
    RK_ASSIGN_OR_RETURN(ImageRecord record, core_->Resolve(image, may_go));
    const bool by_digest = absl::StartsWith(image, "sha256:");
    RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("removal of an image"));
    return core_->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
      if (by_digest) {
        absl::string_view hex = record.info.digest;
        absl::ConsumePrefix(&hex, "sha256:");
        RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> same, txn.FindDigest(hex));
        std::erase_if(same, [&](const ImageRecord& other) {
          return IsPrepared(other.info) || (may_go && !may_go(other.info));
        });
        if (same.size() > 1) {
          return absl::InvalidArgumentError(absl::StrCat(
              image, " is the content of ", same.size(), " images, ", same.front().info.reference, " and ",
              same.back().info.reference, " among them. Say which by name."));
        }
      }
      RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> now, txn.FindImage(record.id));
      if (!now)
        return absl::NotFoundError(absl::StrCat("the image ", record.info.reference, " was just removed"));
      if (may) RK_RETURN_IF_ERROR(may(now->info));
      return DeleteImageAndNotes(*core_, txn, *now);
    });
  }

  absl::Status RemoveExactly(const ImageInfo& image) override {
    RK_ASSIGN_OR_RETURN(const std::vector<bool> removed, store::RemoveExactly(*this, {&image, 1}));
    if (removed.front()) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("the image ", image.reference, " was just removed or replaced"));
  }

  absl::Status PutNote(const ImageInfo& image, absl::string_view kind, absl::string_view bytes) override {
    return store::PutNote(*core_, image, kind, {&bytes, 1});
  }
  absl::Status PutNote(const ImageInfo& image, absl::string_view kind,
                       absl::Span<const absl::string_view> parts) override {
    return store::PutNote(*core_, image, kind, parts);
  }
  absl::StatusOr<std::string> GetNote(absl::string_view digest, absl::string_view kind) const override {
    return store::GetNote(*core_, digest, kind);
  }
  absl::StatusOr<std::unique_ptr<NoteReader>> OpenNote(absl::string_view digest,
                                                       absl::string_view kind) const override {
    return store::OpenNote(*core_, digest, kind);
  }
  absl::Status RemoveNote(absl::string_view digest, absl::string_view kind) override {
    return store::RemoveNote(*core_, digest, kind);
  }
  absl::StatusOr<bool> HasNotes(absl::string_view kind) const override {
    return store::HasNotes(*core_, kind);
  }

  absl::StatusOr<std::vector<ObjectDifference>> Diff(absl::string_view a, absl::string_view b,
                                                     const std::atomic<bool>* cancel) const override {
    RK_ASSIGN_OR_RETURN(std::unique_ptr<ImageReaderImpl> reader_a, OpenReader(a));
    RK_ASSIGN_OR_RETURN(std::unique_ptr<ImageReaderImpl> reader_b, OpenReader(b));
    ExtentComparer comparer(core_.get(), *reader_a, *reader_b, cancel);
    static const std::vector<Extent> kNone;
    std::map<std::string, ObjectDifference> by_name;
    for (const PagedObject& object : reader_b->manifest().objects) {
      const std::vector<Extent>* in_a = reader_a->FindExtents(object.name);
      RK_RETURN_IF_ERROR(
          comparer.Compare(in_a != nullptr ? *in_a : kNone, object.extents, by_name[object.name]));
    }
    for (const PagedObject& object : reader_a->manifest().objects) {
      if (reader_b->FindExtents(object.name) == nullptr)
        RK_RETURN_IF_ERROR(comparer.Compare(object.extents, kNone, by_name[object.name]));
    }
    std::map<std::string, const Blob*> blobs_a;
    for (const Blob& blob : reader_a->manifest().blobs) {
      blobs_a[blob.name] = &blob;
      by_name[blob.name].bytes_a += blob.bytes;
    }
    for (const Blob& blob : reader_b->manifest().blobs) {
      ObjectDifference& difference = by_name[blob.name];
      difference.bytes_b += blob.bytes;
      auto it = blobs_a.find(blob.name);
      if (it != blobs_a.end() && it->second->bytes == blob.bytes && it->second->digest == blob.digest) {
        difference.equal_bytes += blob.bytes;
      }
    }
    std::vector<ObjectDifference> differences;
    for (auto& [name, difference] : by_name) {
      difference.name = name;
      differences.push_back(std::move(difference));
    }
    return differences;
  }

  absl::StatusOr<GcReport> Gc(const GcOptions& options) override { return CollectGarbage(core_, options); }
  absl::StatusOr<FsckReport> Fsck(const FsckOptions& options) override { return CheckStore(core_, options); }

  absl::StatusOr<StoreStats> Stats() const override {
    StoreStats stats;
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
    txn.ForEachImage([&stats](const ImageRecord& image) {
      ++stats.images;
      stats.logical_bytes += image.info.stats.logical_bytes;
    });
    RK_ASSIGN_OR_RETURN(std::vector<PackRecord> packs, txn.Packs());
    stats.packs = packs.size();
    for (const PackRecord& pack : packs) stats.chunks += pack.frames;
    RK_ASSIGN_OR_RETURN(StoreBytes bytes, core_->use().MeasureAll(*core_, txn));
    stats.pack_bytes = bytes.pack_bytes;
    stats.metadata_bytes = bytes.metadata_bytes;
    RK_ASSIGN_OR_RETURN(stats.file_system, MeasureFileSystem(core_->path()));
    return stats;
  }

  absl::StatusOr<ImageBytes> WhereBytesAre(absl::string_view image,
                                           const std::function<bool(const ImageInfo&)>& may_see,
                                           const std::atomic<bool>* cancel) const override {
    return FindBytes(core_, image, may_see, cancel);
  }

  absl::StatusOr<StoreLimits> Limits() const override { return ReadLimits(core_->path()); }
  absl::StatusOr<StoreLimits> ChangeLimits(const LimitsChange& change, std::string* warning) override {
    RK_RETURN_IF_ERROR(core_->CheckWritable());
    RK_ASSIGN_OR_RETURN(ChangedLimits changed, store::ChangeLimits(*core_, change));
    *warning = std::move(changed.warning);
    return std::move(changed.limits);
  }

 private:
  absl::StatusOr<std::unique_ptr<ImageReaderImpl>> OpenReader(absl::string_view image) const {
    RK_ASSIGN_OR_RETURN(ImageRecord record, core_->Resolve(image));
    auto reader = ImageReaderImpl::Open(core_, std::move(record));
    if (!absl::IsNotFound(reader.status())) return reader;
    // Removed or replaced a moment ago: another may have its name by now.
    RK_ASSIGN_OR_RETURN(record, core_->Resolve(image));
    return ImageReaderImpl::Open(core_, std::move(record));
  }

  const std::shared_ptr<StoreCore> core_;
};

}  // namespace

absl::Status StoreIsAway(absl::string_view path) {
  return absl::UnavailableError(
      absl::StrCat("the store at ", path, " is not there: is its file system mounted?"));
}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<StoreCore> core, StoreCore::Open(options));
  return std::make_unique<StoreImpl>(std::move(core));
}

// There is no other kind of store.
absl::StatusOr<std::unique_ptr<Scrub>> NewScrub(Store& store) {
  return OpenScrub(static_cast<StoreImpl&>(store).core());
}
absl::StatusOr<ScrubStatus> ReadScrubStatus(const Store& store) {
  return FindScrubStatus(*static_cast<const StoreImpl&>(store).core());
}
absl::StatusOr<std::vector<std::string>> ReadDamagedImages(const Store& store) {
  return FindKnownDamagedImages(*static_cast<const StoreImpl&>(store).core());
}

absl::Status VisitImages(const Store& store, const std::function<bool(const ImageInfo&)>& wanted,
                         const std::function<bool(const ImageInfo&)>& each) {
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, static_cast<const StoreImpl&>(store).core()->catalog().Read());
  RK_ASSIGN_OR_RETURN(const std::vector<ImageRecordPtr> images, txn.ImagesAfter(0));
  // Not by their times: a clock may have been set back, or be another node's.
  for (auto image = images.rbegin(); image != images.rend(); ++image) {
    const ImageInfo& info = (*image)->info;
    if (!IsPrepared(info) && (!wanted || wanted(info)) && !each(info)) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FrameId>> FreedFrames(const Store& store, absl::Span<const FrameId> frames) {
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, static_cast<const StoreImpl&>(store).core()->catalog().Read());
  std::map<uint64_t, std::vector<FrameId>> of_packs;
  for (const FrameId& frame : frames) of_packs[frame.pack].push_back(frame);
  std::vector<FrameId> freed;
  for (const auto& [id, of_pack] : of_packs) {
    RK_ASSIGN_OR_RETURN(const std::optional<PackRecord> pack, txn.FindPack(id));
    const std::shared_ptr<const DeadRecord> dead = txn.SharedDead(id);
    for (const FrameId& frame : of_pack) {
      if (!pack || (dead != nullptr && frame.frame < dead->dead.size() && dead->dead[frame.frame]))
        freed.push_back(frame);
    }
  }
  return freed;
}

absl::StatusOr<std::vector<bool>> RemoveExactly(Store& store, absl::Span<const ImageInfo> images) {
  StoreCore& core = *static_cast<StoreImpl&>(store).core();
  RK_RETURN_IF_ERROR(core.CheckWritable());
  RK_RETURN_IF_ERROR(core.io()->BeforeCatalogCommit("removal of an image"));
  std::vector<bool> removed;
  const auto remove = [&](Catalog::Txn& txn) -> absl::Status {
    removed.clear();
    for (const ImageInfo& image : images) {
      RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> now, txn.FindReference(image.reference));
      removed.push_back(now && now->info.digest == image.digest &&
                        now->info.created_unix_ns == image.created_unix_ns);
      if (removed.back()) RK_RETURN_IF_ERROR(DeleteImageAndNotes(core, txn, *now));
    }
    return absl::OkStatus();
  };
  RK_RETURN_IF_ERROR(core.catalog().Update(remove));
  return removed;
}

absl::StatusOr<std::map<uid_t, OwnerUse>> MeasureOwners(const Store& store) {
  const std::shared_ptr<StoreCore>& core = static_cast<const StoreImpl&>(store).core();
  std::vector<ImageRecordPtr> images;
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core->catalog().Read());
    RK_ASSIGN_OR_RETURN(images, txn.ImagesAfter(0));
  }
  std::map<uid_t, OwnerUse> owners;
  for (const ImageRecordPtr& image : images) {
    OwnerUse& owner = owners[image->info.owner];
    owner.images += IsPrepared(image->info) ? 0 : 1;
    owner.bytes += QuotaBytes(image->info.stats);
  }
  RK_ASSIGN_OR_RETURN(auto inherited, core->inherited_frames().Measure(*core, images));
  for (const auto& [owner, bytes] : inherited) owners[owner].bytes += bytes;
  return owners;
}

}  // namespace rekindle::store
