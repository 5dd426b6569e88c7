#include "dedup_store/image_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/digest_index.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/manifest.h"
#include "dedup_store/pack_writer.h"

namespace rekindle::store {

namespace {

// What a worker takes at a time.
constexpr uint64_t kSlicePages = 1024;
// Metadata files are small and compress far better with more effort.
constexpr uint64_t kSmallBlobStream = uint64_t{1} << 20;
constexpr int kBlobLevel = 9;
constexpr size_t kMaxObjectName = 4096;
constexpr uint32_t kOwnPack = 0;  // position of the pack being written in the manifest's list

// Where a page of the image lies: a position in the manifest's packs and a page there, or one of these.
constexpr uint64_t kZeroPage = ~uint64_t{0};
constexpr uint64_t kSameAs = uint64_t{1} << 63;  // | ordinal of an equal page of this image
uint64_t Location(uint32_t pack, uint32_t page) { return uint64_t{pack} << 32 | page; }

// Consecutive pages in memory, as given to AddPages.
struct Range {
  uint64_t page = 0;  // address / 4096
  const std::byte* data = nullptr;
  uint64_t pages = 0;
  uint32_t first_ordinal = 0;  // number of the first page within the image
};

struct Object {
  std::string name;
  std::vector<Range> ranges;
};

struct Slice {
  const std::vector<Extent>* parent_extents = nullptr;
  Range range;
  int level = 0;
};

// Digests of the pages that this image brings, so that each is stored once. In shards, so that threads seldom
// meet.
class NewPages {
 public:
  // The ordinal of the page that came first with this content: `ordinal` itself when it is new.
  uint32_t Claim(const Hash128& digest, const Hash128& fingerprint, uint32_t ordinal) {
    Shard& shard = shards_[digest.hi >> 58];
    absl::MutexLock lock(&shard.mutex);
    auto [it, inserted] = shard.pages.try_emplace(digest, Entry{fingerprint, ordinal});
    if (inserted || it->second.fingerprint == fingerprint) return it->second.ordinal;
    return ordinal;
  }

 private:
  struct Entry {
    Hash128 fingerprint;
    uint32_t ordinal;
  };
  struct Shard {
    absl::Mutex mutex;
    absl::flat_hash_map<Hash128, Entry> pages ABSL_GUARDED_BY(mutex);
  };
  Shard shards_[64];
};

// The packs that the image refers to, in order of first use. Thread-safe.
class PackList {
 public:
  uint32_t PositionOf(const std::shared_ptr<const Pack>& pack) {
    absl::MutexLock lock(&mutex_);
    auto [it, inserted] = positions_.try_emplace(pack->id(), static_cast<uint32_t>(packs_.size()));
    if (inserted) packs_.push_back(pack);
    return it->second;
  }
  std::vector<std::shared_ptr<const Pack>> Take() {
    absl::MutexLock lock(&mutex_);
    return packs_;
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, uint32_t> positions_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const Pack>> packs_ ABSL_GUARDED_BY(mutex_){nullptr};  // kOwnPack
};

class ImageWriterImpl : public ImageWriter {
 public:
  ImageWriterImpl(std::shared_ptr<StoreCore> core, NewImageOptions options,
                  std::unique_ptr<ImageReaderImpl> parent)
      : core_(std::move(core)), options_(std::move(options)), parent_(std::move(parent)) {}

  absl::Status AddBlob(absl::string_view name, absl::string_view bytes) override;
  absl::Status AddPages(absl::string_view name, uint64_t address, absl::Span<const std::byte> pages) override;
  absl::StatusOr<ImageInfo> Commit(std::function<bool(uint64_t, uint64_t)> progress) override;

 private:
  struct NamedBlob {
    std::string name;
    std::string bytes;
  };
  struct Worker;

  absl::Status CheckName(absl::string_view name) const;
  void LayOutBlobs(Manifest& manifest);
  std::vector<Slice> CutSlices();
  absl::Status StoreSlices(const std::vector<Slice>& slices,
                           const std::function<bool(uint64_t, uint64_t)>& progress);
  absl::Status StoreSlice(const Slice& slice, Worker& worker);
  absl::Status AppendFrame(Worker& worker, int level);
  std::vector<Extent> ExtentsOf(const std::vector<Range>& ranges) const;
  absl::Status CommitToCatalog(ImageRecord& record);

  const std::shared_ptr<StoreCore> core_;
  const NewImageOptions options_;
  const std::unique_ptr<ImageReaderImpl> parent_;
  bool committed_ = false;

  std::vector<Object> objects_;
  absl::flat_hash_map<std::string, size_t> object_by_name_;
  std::vector<NamedBlob> blobs_;
  absl::flat_hash_map<std::string, size_t> blob_by_name_;
  std::string blob_stream_;
  Object blob_object_;

  // During Commit. Elements of locations_ are each written by one worker.
  uint64_t total_pages_ = 0;
  std::vector<uint64_t> locations_;
  NewPages new_pages_;
  PackList packs_;
  std::vector<uint32_t> parent_positions_;  // of the parent's packs in packs_
  std::unique_ptr<DigestIndex> index_;
  std::unique_ptr<PackWriter> pack_writer_;
  uint64_t stats_zero_ = 0, stats_parent_ = 0, stats_shared_ = 0, stats_fresh_ = 0;  // pages
};

struct ImageWriterImpl::Worker {
  explicit Worker(PackWriter* writer) : appender(writer) {}
  PackWriter::Appender appender;
  Sha256 sha;
  std::vector<NewPage> frame;
  std::vector<PackWriter::Placed> placed;
  uint64_t zero = 0, parent = 0, shared = 0, fresh = 0;  // pages
};

absl::Status ImageWriterImpl::CheckName(absl::string_view name) const {
  if (committed_) return absl::FailedPreconditionError("the image was committed already");
  if (name.empty() || name.size() > kMaxObjectName) {
    return absl::InvalidArgumentError(absl::StrCat("an object's name has 1 to ", kMaxObjectName, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status ImageWriterImpl::AddBlob(absl::string_view name, absl::string_view bytes) {
  RK_RETURN_IF_ERROR(CheckName(name));
  if (object_by_name_.contains(std::string(name)) ||
      !blob_by_name_.try_emplace(std::string(name), blobs_.size()).second) {
    return absl::AlreadyExistsError(absl::StrCat("the image has an object '", name, "' already"));
  }
  blobs_.push_back({std::string(name), std::string(bytes)});
  return absl::OkStatus();
}

absl::Status ImageWriterImpl::AddPages(absl::string_view name, uint64_t address,
                                       absl::Span<const std::byte> pages) {
  RK_RETURN_IF_ERROR(CheckName(name));
  if (address % kPageSize != 0 || pages.size() % kPageSize != 0) {
    return absl::InvalidArgumentError(absl::StrCat("object '", name, "': pages are added at whole pages"));
  }
  if (blob_by_name_.contains(std::string(name))) {
    return absl::AlreadyExistsError(absl::StrCat("the image has a blob '", name, "' already"));
  }
  auto [it, inserted] = object_by_name_.try_emplace(std::string(name), objects_.size());
  if (inserted) objects_.push_back({std::string(name), {}});
  if (pages.empty()) return absl::OkStatus();
  std::vector<Range>& ranges = objects_[it->second].ranges;
  Range range{address / kPageSize, pages.data(), pages.size() / kPageSize, 0};
  if (!ranges.empty() && range.page < ranges.back().page + ranges.back().pages) {
    return absl::InvalidArgumentError(absl::StrCat("object '", name, "': addresses must ascend"));
  }
  if (total_pages_ + range.pages > 0xfffffffeu)
    return absl::InvalidArgumentError("an image has at most 16 TiB");
  total_pages_ += range.pages;
  ranges.push_back(range);
  return absl::OkStatus();
}

// Small blobs lie close together, so that they compress as one; larger ones begin at whole pages, so that
// equal ones are found again.
void ImageWriterImpl::LayOutBlobs(Manifest& manifest) {
  Sha256 sha;
  for (bool large : {false, true}) {
    for (const NamedBlob& blob : blobs_) {
      if ((blob.bytes.size() >= kPageSize) != large) continue;
      if (large) blob_stream_.resize((blob_stream_.size() + kPageSize - 1) / kPageSize * kPageSize);
      manifest.blobs.push_back({blob.name, blob_stream_.size(), blob.bytes.size(),
                                sha.Truncated(blob.bytes.data(), blob.bytes.size())});
      blob_stream_ += blob.bytes;
    }
  }
  blob_stream_.resize((blob_stream_.size() + kPageSize - 1) / kPageSize * kPageSize);
  blobs_.clear();
  if (blob_stream_.empty()) return;
  uint64_t pages = blob_stream_.size() / kPageSize;
  blob_object_.ranges = {{0, reinterpret_cast<const std::byte*>(blob_stream_.data()), pages, 0}};
  total_pages_ += pages;
}

std::vector<Slice> ImageWriterImpl::CutSlices() {
  std::vector<Slice> slices;
  uint32_t ordinal = 0;
  auto cut = [&](Object& object, const std::vector<Extent>* parent_extents, int level) {
    for (Range& range : object.ranges) {
      range.first_ordinal = ordinal;
      ordinal += static_cast<uint32_t>(range.pages);
      for (uint64_t done = 0; done < range.pages;) {
        // Cut at multiples of the slice size, so that frames of successive images begin at the same
        // addresses.
        uint64_t page = range.page + done;
        uint64_t n = std::min(range.pages - done, kSlicePages - page % kSlicePages);
        slices.push_back(
            {parent_extents,
             {page, range.data + done * kPageSize, n, range.first_ordinal + static_cast<uint32_t>(done)},
             level});
        done += n;
      }
    }
  };
  int level = core_->compression_level();
  int blob_level = level > 0 && blob_stream_.size() <= kSmallBlobStream ? std::max(level, kBlobLevel) : level;
  cut(blob_object_, parent_ ? &parent_->manifest().blob_stream : nullptr, blob_level);
  for (Object& object : objects_) cut(object, parent_ ? parent_->FindExtents(object.name) : nullptr, level);
  return slices;
}

absl::Status ImageWriterImpl::AppendFrame(Worker& worker, int level) {
  if (worker.frame.empty()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(worker.appender.Append(worker.frame, level, &worker.placed));
  worker.frame.clear();
  return absl::OkStatus();
}

absl::Status ImageWriterImpl::StoreSlice(const Slice& slice, Worker& worker) {
  const Range& range = slice.range;
  std::vector<Extent>::const_iterator extent, extents_end;
  if (slice.parent_extents != nullptr) {
    extents_end = slice.parent_extents->end();
    extent = std::upper_bound(slice.parent_extents->begin(), extents_end, range.page,
                              [](uint64_t page, const Extent& e) { return page < e.page + e.pages; });
  }
  const Pack* parent_pack = nullptr;
  absl::Span<const Hash128> parent_fingerprints;

  for (uint64_t i = 0; i < range.pages; ++i) {
    const std::byte* data = range.data + i * kPageSize;
    auto ordinal = static_cast<uint32_t>(range.first_ordinal + i);
    uint64_t& location = locations_[ordinal];
    if (IsZeroPage(data)) {
      location = kZeroPage;
      ++worker.zero;
      continue;
    }
    Hash128 fingerprint = core_->fingerprinter().Of(data);
    if (slice.parent_extents != nullptr) {
      uint64_t page = range.page + i;
      while (extent != extents_end && extent->page + extent->pages <= page) ++extent;
      if (extent != extents_end && extent->page <= page && !extent->zero()) {
        const Pack* pack = parent_->packs()[extent->pack].get();
        if (pack != parent_pack) {
          RK_ASSIGN_OR_RETURN(parent_fingerprints, pack->Fingerprints());
          parent_pack = pack;
        }
        auto pack_page = static_cast<uint32_t>(extent->pack_page + (page - extent->page));
        if (parent_fingerprints[pack_page] == fingerprint) {
          location = Location(parent_positions_[extent->pack], pack_page);
          ++worker.parent;
          continue;
        }
      }
    }
    Hash128 digest = worker.sha.Page(data);
    if (auto found = index_->Find(digest, fingerprint)) {
      location = Location(packs_.PositionOf(found->pack), found->page);
      ++worker.shared;
      continue;
    }
    uint32_t first = new_pages_.Claim(digest, fingerprint, ordinal);
    if (first != ordinal) {
      location = kSameAs | first;
      ++worker.shared;
      continue;
    }
    ++worker.fresh;
    worker.frame.push_back({data, fingerprint, digest, ordinal});
    if (worker.frame.size() == kMaxFramePages) RK_RETURN_IF_ERROR(AppendFrame(worker, slice.level));
  }
  return AppendFrame(worker, slice.level);
}

absl::Status ImageWriterImpl::StoreSlices(const std::vector<Slice>& slices,
                                          const std::function<bool(uint64_t, uint64_t)>& progress) {
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  absl::Mutex mutex;
  absl::Status error;
  uint64_t done = 0;
  const size_t threads = std::clamp<size_t>(slices.size() / 2, 1, core_->threads());
  std::vector<std::unique_ptr<Worker>> workers;
  for (size_t i = 0; i < threads; ++i) workers.push_back(std::make_unique<Worker>(pack_writer_.get()));

  auto work = [&](Worker* worker) {
    absl::Status status;
    for (size_t i; status.ok() && !stop && (i = next.fetch_add(1)) < slices.size();) {
      status = StoreSlice(slices[i], *worker);
      absl::MutexLock lock(&mutex);
      done += slices[i].range.pages;
      if (status.ok() && progress && !progress(done * kPageSize, total_pages_ * kPageSize)) {
        status = absl::CancelledError(
            absl::StrCat("writing image ", options_.reference, " was cancelled; nothing of it is left"));
      }
    }
    if (status.ok() && !stop) status = worker->appender.Flush(&worker->placed);
    if (status.ok()) return;
    absl::MutexLock lock(&mutex);
    error.Update(status);
    stop = true;
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work, workers[i].get());
  work(workers[0].get());
  for (std::thread& helper : helpers) helper.join();
  RK_RETURN_IF_ERROR(error);
  for (const auto& worker : workers) {
    for (const PackWriter::Placed& placed : worker->placed) {
      locations_[placed.ordinal] = Location(kOwnPack, placed.page);
    }
    stats_zero_ += worker->zero;
    stats_parent_ += worker->parent;
    stats_shared_ += worker->shared;
    stats_fresh_ += worker->fresh;
  }
  return absl::OkStatus();
}

std::vector<Extent> ImageWriterImpl::ExtentsOf(const std::vector<Range>& ranges) const {
  std::vector<Extent> extents;
  for (const Range& range : ranges) {
    for (uint64_t i = 0; i < range.pages; ++i) {
      uint64_t location = locations_[range.first_ordinal + i];
      if (location == kZeroPage) {
        AppendExtent(extents, {range.page + i, 1, Extent::kZero, 0});
        continue;
      }
      if (location & kSameAs) location = locations_[static_cast<uint32_t>(location)];
      AppendExtent(extents, {range.page + i, 1, static_cast<uint32_t>(location >> 32),
                             static_cast<uint32_t>(location)});
    }
  }
  return extents;
}

absl::Status ImageWriterImpl::CommitToCatalog(ImageRecord& record) {
  RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("image"));
  return core_->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> taken, txn.FindReference(record.info.reference));
    if (taken && !options_.replace) {
      return absl::AlreadyExistsError(absl::StrCat("there is an image ", record.info.reference, " already (",
                                                   taken->info.digest,
                                                   "). Choose another name, or replace it."));
    }
    if (taken) RK_RETURN_IF_ERROR(txn.DeleteImage(*taken));
    RK_ASSIGN_OR_RETURN(record.id, txn.NextImageId());
    RK_RETURN_IF_ERROR(
        txn.PutPack({pack_writer_->id(), pack_writer_->file_bytes(), pack_writer_->stored_bytes(),
                     pack_writer_->frames(), pack_writer_->pages(), 0}));
    return txn.PutImage(record);
  });
}

absl::StatusOr<ImageInfo> ImageWriterImpl::Commit(std::function<bool(uint64_t, uint64_t)> progress) {
  if (committed_) return absl::FailedPreconditionError("the image was committed already");
  committed_ = true;
  ImageRecord record;
  record.info.reference = options_.reference;
  record.info.owner = options_.owner;
  record.info.labels = options_.labels;
  record.info.created_unix_ns = UnixNanos();
  if (parent_) record.info.parent_digest = parent_->info().digest;
  auto failed = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("writing image ", options_.reference));
  };

  Manifest manifest;
  LayOutBlobs(manifest);
  const std::vector<Slice> slices = CutSlices();
  locations_.resize(total_pages_);
  if (parent_) {
    for (const auto& pack : parent_->packs()) parent_positions_.push_back(packs_.PositionOf(pack));
  }
  auto index = DigestIndex::Load(core_.get());
  if (!index.ok()) return failed(index.status());
  index_ = *std::move(index);
  PackWriterOptions pack_options;
  pack_options.directory = core_->packs_folder();
  pack_options.uuid = core_->identity().uuid;
  pack_options.seed = core_->identity().seed;
  pack_options.created_unix_ns = record.info.created_unix_ns;
  pack_options.expected_bytes = total_pages_ * kPageSize;
  pack_options.threads = core_->threads();
  auto pack_writer = PackWriter::Create(core_->io(), pack_options);
  if (!pack_writer.ok()) return failed(pack_writer.status());
  pack_writer_ = *std::move(pack_writer);

  absl::Status stored = StoreSlices(slices, progress);
  if (absl::IsCancelled(stored)) return stored;
  if (!stored.ok()) return failed(stored);

  for (const Object& object : objects_) manifest.objects.push_back({object.name, ExtentsOf(object.ranges)});
  manifest.blob_stream = ExtentsOf(blob_object_.ranges);
  const std::vector<std::shared_ptr<const Pack>> packs = packs_.Take();
  std::vector<absl::Span<const Hash128>> digests = {pack_writer_->digests()};
  manifest.packs = {pack_writer_->id()};
  for (size_t i = 1; i < packs.size(); ++i) {
    manifest.packs.push_back(packs[i]->id());
    auto of_pack = packs[i]->Digests();
    if (!of_pack.ok()) return failed(of_pack.status());
    digests.push_back(*of_pack);
  }
  record.info.digest =
      DigestText(manifest.ContentDigest([&](uint32_t pack, uint32_t page) { return digests[pack][page]; }));
  manifest.DropUnusedPacks();

  ImageStats& stats = record.info.stats;
  const std::string encoded_manifest = manifest.Encode();
  stats.logical_bytes = total_pages_ * kPageSize;
  stats.zero_bytes = stats_zero_ * kPageSize;
  stats.parent_bytes = stats_parent_ * kPageSize;
  stats.shared_bytes = stats_shared_ * kPageSize;
  stats.new_bytes = stats_fresh_ * kPageSize;
  stats.stored_bytes = pack_writer_->stored_bytes();
  stats.metadata_bytes = pack_writer_->MetadataBytes(encoded_manifest.size() + record.Encode().size());
  record.manifest_pack = pack_writer_->id();
  absl::Status status = pack_writer_->Seal(encoded_manifest, record.Encode());
  if (status.ok()) status = CommitToCatalog(record);
  if (!status.ok()) {
    // A commit that failed half-way may have reached the disk. Then the pack is needed, and gc decides.
    auto txn = core_->catalog().Read();
    auto listed = txn.ok() ? txn->FindPack(pack_writer_->id()) : txn.status();
    if (!listed.ok() || *listed) pack_writer_->Keep();
    return failed(status);
  }
  pack_writer_->Keep();
  pack_writer_.reset();
  index_.reset();
  // The image is safe; a longer list of packs to ask only costs time, and the next commit tries again.
  if (absl::Status merged = MergeIndexes(core_.get(), false); !merged.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("the index of the store was not merged: ", merged.message()));
  }
  return record.info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageWriter>> NewImageWriter(std::shared_ptr<StoreCore> core,
                                                            const NewImageOptions& options) {
  RK_RETURN_IF_ERROR(core->CheckWritable());
  NewImageOptions normalized = options;
  RK_ASSIGN_OR_RETURN(normalized.reference, NormalizeReference(options.reference));
  if (!options.replace) {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core->catalog().Read());
    RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> taken, txn.FindReference(normalized.reference));
    if (taken) {
      return absl::AlreadyExistsError(absl::StrCat("there is an image ", normalized.reference, " already (",
                                                   taken->info.digest,
                                                   "). Choose another name, or replace it."));
    }
  }
  std::unique_ptr<ImageReaderImpl> parent;
  if (!options.parent.empty()) {
    RK_ASSIGN_OR_RETURN(ImageRecord record, core->Resolve(options.parent));
    RK_ASSIGN_OR_RETURN(parent, ImageReaderImpl::Open(core, std::move(record)));
  }
  return std::make_unique<ImageWriterImpl>(std::move(core), std::move(normalized), std::move(parent));
}

}  // namespace rekindle::store
