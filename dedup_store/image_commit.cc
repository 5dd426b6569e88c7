#include "dedup_store/image_commit.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/index_merge.h"
#include "dedup_store/limit_guard.h"
#include "dedup_store/page_storer.h"
#include "dedup_store/page_table.h"
#include "dedup_store/prepared.h"
#include "dedup_store/referred_frames.h"
#include "dedup_store/store_notes.h"

namespace rekindle::store {

namespace {

// Positions in the manifest's list of packs. Nearly every image brings one pack. A second one holds what the
// image had hoped to share with another that came to nothing, and then the manifest.
constexpr uint32_t kMainPack = 0, kLatePack = 1, kOwnPacks = 2;
constexpr uint64_t kMostPages = uint64_t{1} << 32;

class HeldTicket {
 public:
  HeldTicket(PageClaims& claims, bool receiving)
      : claims_(claims), ticket_(receiving ? claims.JoinReceiving() : claims.Join()) {}
  ~HeldTicket() { claims_.Leave(*ticket_); }
  HeldTicket(const HeldTicket&) = delete;
  HeldTicket& operator=(const HeldTicket&) = delete;
  PageClaims::Ticket& operator*() const { return *ticket_; }

 private:
  PageClaims& claims_;
  const std::shared_ptr<PageClaims::Ticket> ticket_;
};

class Committing {
 public:
  // `early`: pages are stored while more come.
  Committing(const std::shared_ptr<StoreCore>& core, const NewImageOptions& options,
             const ImageReaderImpl* parent, ImageContent& content, bool early)
      : core_(core),
        options_(options),
        parent_(parent),
        content_(content),
        early_(early),
        ticket_(core->claims(), early),
        packs_(kOwnPacks),
        storer_(core.get(), parent, &*ticket_, &packs_, options.sparing) {}

  absl::Status Begin() {
    created_ = UnixNanos();
    RK_ASSIGN_OR_RETURN(guard_, LimitGuard::Begin(core_.get(), options_));
    const uint64_t pages =
        std::min(early_ ? options_.coming_bytes / kPageSize : content_.ordinals(), kMostPages);
    appenders_ = storer_.AppendersFor(pages);
    RK_ASSIGN_OR_RETURN(writers_[kMainPack], NewPack(pages, appenders_));
    return storer_.Begin(writers_[kMainPack].get(), kMainPack, appenders_, early_);
  }

  absl::Status Add(absl::string_view object, const ContentRange& range) {
    return range.zero ? absl::OkStatus() : storer_.Add(object, range);
  }

  // After all pages were added.
  absl::StatusOr<ImageInfo> Run(const PageStorer::Progress& progress,
                                const std::function<absl::Status()>& still_held) {
    ImageRecord record;
    record.info.reference = options_.prepared_id.empty()
                                ? options_.reference
                                : PreparedReference(options_.prepared_id, options_.reference);
    record.info.owner = options_.owner;
    record.info.labels = options_.labels;
    record.info.created_unix_ns = created_;
    if (parent_ != nullptr) record.info.parent_digest = parent_->info().digest;

    Manifest manifest;
    manifest.blobs = content_.LayOut();
    if (early_) core_->claims().Received(*ticket_);
    RK_RETURN_IF_ERROR(storer_.Finish(content_, progress));
    uint32_t home = kMainPack;
    if (!storer_.deferred().empty()) {
      if (writers_[kMainPack]->pages() > 0) {
        RK_RETURN_IF_ERROR(Register(*writers_[kMainPack]));
        home = kLatePack;
        const uint64_t pages = storer_.deferred().size();
        appenders_ = storer_.AppendersFor(pages);
        RK_ASSIGN_OR_RETURN(writers_[kLatePack], NewPack(pages, appenders_));
      }
      core_->claims().Settle(*ticket_);
      RK_RETURN_IF_ERROR(storer_.StoreDeferred(writers_[home].get(), home, appenders_, progress));
    }
    if (still_held) RK_RETURN_IF_ERROR(still_held());
    PackWriter& writer = *writers_[home];
    RK_RETURN_IF_ERROR(Describe(manifest, record));
    record.manifest_pack = writer.id();
    const std::string encoded = manifest.Encode();
    ImageStats& stats = record.info.stats;
    stats.metadata_bytes = writer.MetadataBytes(encoded.size() + record.Encode().size());
    if (home == kLatePack) stats.metadata_bytes += writers_[kMainPack]->MetadataBytes(0);

    absl::Status status = writer.Seal(encoded, record.Encode());
    if (status.ok()) {
      WriteTable(writer);
      status = CommitToCatalog(record, manifest, writer);
    }
    if (!status.ok()) {
      KeepIfListed(writer);
      return status;
    }
    writer.Keep();
    record.info.reference = options_.reference;
    return record.info;
  }

 private:
  absl::StatusOr<std::unique_ptr<PackWriter>> NewPack(uint64_t pages, size_t appenders) {
    PackWriterOptions options;
    options.directory = core_->packs_folder();
    options.uuid = core_->identity().uuid;
    options.seed = core_->identity().seed;
    options.created_unix_ns = created_;
    options.expected_bytes = pages * kPageSize;
    options.appenders = appenders;
    if (options_.sparing) {
      options.least_gain = kLeastGainSparing;
      options.raw = Codec::kRawKeyed;
      options.untried = kUntriedSparing;
    }
    options.fingerprinter = &core_->fingerprinter();
    options.may_take = [guard = guard_.get()](uint64_t bytes, uint64_t reserved) {
      return guard->MayTake(bytes, reserved);
    };
    return PackWriter::Create(core_->io(), options);
  }

  // Of a sealed pack, which has given back what it had taken of the disk too much. Nothing is lost without
  // it: the table is made anew when it is wanted.
  void WriteTable(const PackWriter& writer) {
    if (writer.pages() == 0) return;
    absl::Status status = WritePageTable(core_.get(), writer.id(), writer.fingerprints());
    if (!status.ok()) Log(LogLevel::kWarning, absl::StrCat("a page table is left out: ", status.message()));
  }

  static PackRecord RecordOf(const PackWriter& writer) {
    return {writer.id(), writer.file_bytes(), writer.stored_bytes(), writer.frames(), writer.pages(), 0};
  }

  // Makes a pack part of the store before the image is, so that the images that wait for its pages find them.
  absl::Status Register(PackWriter& writer) {
    RK_RETURN_IF_ERROR(writer.Seal("", ""));
    WriteTable(writer);
    RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("pack"));
    absl::Status status = core_->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
      RK_RETURN_IF_ERROR(core_->CheckIsThere());
      RK_RETURN_IF_ERROR(txn.PutPack(RecordOf(writer)));
      // Others may read it from now on. A lock changes its kind by being given up for a moment, in which a gc
      // may take the file for a leftover.
      return writer.ShareLock();
    });
    KeepIfListed(writer);
    return status;
  }

  // A transaction that failed half-way may have reached the disk. Then the pack is needed, and gc decides.
  void KeepIfListed(PackWriter& writer) {
    auto txn = core_->catalog().ReadNow();
    auto listed = txn.ok() ? txn->FindPack(writer.id()) : txn.status();
    if (!listed.ok() || *listed) writer.Keep();
  }

  // Fills in what follows from where the pages came to lie.
  absl::Status Describe(Manifest& manifest, ImageRecord& record) {
    for (const ContentObject& object : content_.objects) {
      manifest.objects.push_back({object.name, ExtentsOf(object.ranges, storer_.locations())});
    }
    manifest.blob_stream = ExtentsOf(content_.blob_object.ranges, storer_.locations());
    const std::vector<std::shared_ptr<const Pack>> packs = packs_.packs();
    for (size_t i = 0; i < packs.size(); ++i) {
      manifest.packs.push_back(packs[i] ? packs[i]->id() : writers_[i] ? writers_[i]->id() : 0);
    }
    record.info.digest = DigestText(manifest.ContentDigest([&](uint32_t pack, uint32_t page) {
      return packs[pack] ? packs[pack]->IdentityOf(page) : writers_[pack]->IdentityOf(page);
    }));
    manifest.DropUnusedPacks();
    ImageStats& stats = record.info.stats;
    const PageCounts& counts = storer_.counts();
    stats.logical_bytes = content_.total_pages * kPageSize;
    stats.zero_bytes = (counts.zero + content_.zero_pages) * kPageSize;
    stats.parent_bytes = counts.parent * kPageSize;
    stats.shared_bytes = counts.shared * kPageSize;
    stats.new_bytes = counts.fresh * kPageSize;
    for (const auto& writer : writers_) stats.stored_bytes += writer ? writer->stored_bytes() : 0;
    return absl::OkStatus();
  }

  absl::Status CommitToCatalog(ImageRecord& record, const Manifest& manifest, const PackWriter& writer) {
    RK_RETURN_IF_ERROR(guard_->BeforeCommit(options_, manifest, created_));
    ReferredFrames referred(core_.get(), manifest, writer.id(), packs_.packs());
    {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
      RK_RETURN_IF_ERROR(referred.Check(txn));
    }
    RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("image"));
    return core_->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
      // Another store may have been made in its place, of which this pack would be none.
      RK_RETURN_IF_ERROR(core_->CheckIsThere());
      RK_RETURN_IF_ERROR(referred.Check(txn));
      RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> taken, txn.FindReference(options_.reference));
      if (taken) RK_RETURN_IF_ERROR(MayTakeReference(options_, taken->info));
      RK_RETURN_IF_ERROR(NobodyPrepares(txn, options_.reference, options_.prepared_id));
      // Until a prepared image is published what it replaces stays.
      if (taken && options_.prepared_id.empty())
        RK_RETURN_IF_ERROR(DeleteImageAndNotes(*core_, txn, *taken, record.info.digest));
      const uint64_t table_bytes = sizeof(PageTableHeader) + uint64_t{writer.pages()} * 8;
      RK_RETURN_IF_ERROR(guard_->MayCommit(txn, record.info.stats, writer.file_bytes() + table_bytes));
      RK_ASSIGN_OR_RETURN(record.id, txn.NextImageId());
      record.info.commit_number = record.id;
      RK_RETURN_IF_ERROR(txn.PutPack(RecordOf(writer)));
      return txn.PutImage(record);
    });
  }

  const std::shared_ptr<StoreCore> core_;
  const NewImageOptions& options_;
  const ImageReaderImpl* const parent_;
  ImageContent& content_;
  const bool early_;
  const HeldTicket ticket_;  // leaves when the packs are closed: then others can read them
  int64_t created_ = 0;
  size_t appenders_ = 1;               // of the pack that is being written
  std::unique_ptr<LimitGuard> guard_;  // outlives the writers, which ask it
  std::unique_ptr<PackWriter> writers_[kOwnPacks];
  PackList packs_;
  PageStorer storer_;
};

}  // namespace

absl::Status MayTakeReference(const NewImageOptions& options, const ImageInfo& of) {
  if (!options.replace) {
    return absl::AlreadyExistsError(absl::StrCat("there is an image ", of.reference, " already (", of.digest,
                                                 "): choose another name, or take this one with --replace"));
  }
  if (options.replace_others || of.owner == options.owner) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("image ", of.reference, " belongs to uid ", of.owner,
                                                  ", and uid ", options.owner,
                                                  " may not replace it: choose another name"));
}

namespace {

class ImageCommitImpl : public ImageCommit {
 public:
  ImageCommitImpl(std::shared_ptr<StoreCore> core, const NewImageOptions& options,
                  const ImageReaderImpl* parent, ImageContent& content)
      : core_(std::move(core)), options_(options), parent_(parent), content_(content) {}

  absl::Status StoreEarly(absl::string_view object, const ContentRange& range) override {
    if (!early_) {
      early_ = std::make_unique<Committing>(core_, options_, parent_, content_, true);
      RK_RETURN_IF_ERROR(Told(early_->Begin()));
    }
    return Told(early_->Add(object, range));
  }

  absl::StatusOr<ImageInfo> Finish(const std::function<bool(uint64_t, uint64_t)>& progress,
                                   const std::function<absl::Status()>& still_held) override {
    absl::StatusOr<ImageInfo> info = Store(progress, still_held);
    if (!info.ok()) return Told(info.status());
    // The image is safe; a longer list of packs to ask only costs time, and the next commit tries again.
    if (absl::Status merged = MergeIndexes(core_.get(), false); !merged.ok()) {
      Log(LogLevel::kWarning, absl::StrCat("the index of the store was not merged: ", merged.message()));
    }
    return info;
  }

 private:
  absl::StatusOr<ImageInfo> Store(const std::function<bool(uint64_t, uint64_t)>& progress,
                                  const std::function<absl::Status()>& still_held) {
    if (early_) return std::exchange(early_, nullptr)->Run(progress, still_held);
    Committing committing(core_, options_, parent_, content_, false);
    RK_RETURN_IF_ERROR(committing.Begin());
    for (const ContentObject& object : content_.objects) {
      for (const ContentRange& range : object.ranges) {
        RK_RETURN_IF_ERROR(committing.Add(object.name, range));
      }
    }
    return committing.Run(progress, still_held);
  }

  absl::Status Told(const absl::Status& status) const {
    if (status.ok()) return status;
    if (absl::IsCancelled(status)) {
      return absl::CancelledError(
          absl::StrCat("writing image ", options_.reference, " was cancelled; nothing of it is left"));
    }
    return Annotate(status, absl::StrCat("writing image ", options_.reference));
  }

  const std::shared_ptr<StoreCore> core_;
  const NewImageOptions& options_;
  const ImageReaderImpl* const parent_;
  ImageContent& content_;
  std::unique_ptr<Committing> early_;
};

}  // namespace

std::unique_ptr<ImageCommit> NewImageCommit(const std::shared_ptr<StoreCore>& core,
                                            const NewImageOptions& options, const ImageReaderImpl* parent,
                                            ImageContent& content) {
  return std::make_unique<ImageCommitImpl>(core, options, parent, content);
}

}  // namespace rekindle::store
