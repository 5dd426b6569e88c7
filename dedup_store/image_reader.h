// Reads one committed image. The packs it needs are opened, and so kept from gc, when it is made.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "dedup_store/frame_loader.h"
#include "dedup_store/manifest.h"
#include "dedup_store/read_plan.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// What the image's home pack holds; DataLoss when it is damaged, NotFound when gc took it.
//
// For who looks at many images: nothing of the pack is read but that, and it is not asked whether the store
// still has it. So an image that was removed a moment ago may still be found.
absl::StatusOr<Manifest> ReadManifest(StoreCore& core, const ImageRecord& image);
// Those of many images, which are as many small files, each of which may have to come from the disk or a file
// server: several threads read them. `each` gets them on this thread, in the order of the images; a status
// other than OK ends it. Cancelled: `*cancel` is set.
absl::Status ReadManifests(
    StoreCore& core, absl::Span<const ImageRecordPtr> images, const std::atomic<bool>* cancel,
    absl::FunctionRef<absl::Status(const ImageRecord&, absl::StatusOr<Manifest>)> each);

class ImageReaderImpl : public ImageReader {
 public:
  ~ImageReaderImpl() override { core_->blob_cache().ForgetReader(blob_reader_); }
  static absl::StatusOr<std::unique_ptr<ImageReaderImpl>> Open(const std::shared_ptr<StoreCore>& core,
                                                               ImageRecord record);

  const ImageInfo& info() const override { return record_.info; }
  const std::vector<ObjectInfo>& objects() const override { return objects_; }
  absl::StatusOr<std::string> ReadBlob(absl::string_view name) const override;
  absl::StatusOr<std::vector<PageRun>> Runs(absl::string_view name) const override;
  absl::Status ReadPages(absl::string_view name, uint64_t address, absl::Span<std::byte> out) const override;
  absl::Status ReadRanges(absl::string_view name, absl::Span<const PageRun> ranges,
                          const PageSink& sink) const override;
  absl::StatusOr<std::vector<StoredRun>> Layout(absl::string_view name) const override;
  uint32_t FramePages(FrameId frame) const override;
  absl::Status LoadFrame(FrameId frame, absl::Span<std::byte> out) const override;
  absl::Status LoadFrames(absl::Span<const FrameId> frames, const FrameTarget& where,
                          const FrameLoaded& loaded) const override;

  const ImageRecord& record() const { return record_; }
  const Manifest& manifest() const { return manifest_; }
  // In the order of manifest().packs.
  const PackPointers& packs() const { return packs_; }
  // The extents of a paged object; null when there is none of this name.
  const std::vector<Extent>* FindExtents(absl::string_view name) const;
  // Has that object all of these pages, none of them in a frame that is known to be damaged?
  bool HasPages(absl::string_view name, uint64_t address, uint64_t pages) const;

 private:
  class RangeReader;
  class FrameReader;
  // Where pages go: to a sink, or into memory that begins at an address.
  struct Target {
    const PageSink* sink = nullptr;
    uint64_t address = 0;
    absl::Span<std::byte> memory;
  };

  ImageReaderImpl(std::shared_ptr<StoreCore> core, ImageRecord record)
      : core_(std::move(core)), record_(std::move(record)), blob_reader_(core_->blob_cache().NewReader()) {}
  absl::Status Load();
  // The frame's pages as what is to be read; OutOfRange when this image uses nothing of its pack.
  absl::StatusOr<WantedPages> Locate(FrameId frame) const;
  absl::Status CheckRoom(const WantedPages& frame, size_t bytes) const;
  absl::Status FrameDamaged(const WantedPages& frame, const absl::Status& why) const;
  std::unique_ptr<FrameLoader> TakeLoader() const ABSL_LOCKS_EXCLUDED(loaders_mutex_);
  void GiveBack(std::unique_ptr<FrameLoader> loader) const ABSL_LOCKS_EXCLUDED(loaders_mutex_);
  absl::Status Run(absl::string_view object, const std::vector<Extent>& extents,
                   absl::Span<const PageRun> ranges, size_t max_threads, const Target& target) const;
  absl::Status ReadExtents(absl::string_view object, const std::vector<Extent>& extents, uint64_t address,
                           absl::Span<std::byte> out) const;
  // Null: only what is wanted of it is to be read.
  std::shared_ptr<const std::string> BlobPiece(uint64_t piece) const ABSL_LOCKS_EXCLUDED(pieces_mutex_);

  std::shared_ptr<StoreCore> core_;
  ImageRecord record_;
  Manifest manifest_;
  PackPointers packs_;
  absl::flat_hash_map<uint64_t, uint32_t> pack_positions_;  // id -> position in packs_
  std::vector<ObjectInfo> objects_;
  // Into manifest_.
  absl::flat_hash_map<absl::string_view, const std::vector<Extent>*> extents_by_name_;
  absl::flat_hash_map<absl::string_view, const Blob*> blobs_by_name_;
  const uint64_t blob_reader_;  // of the store's cache
  enum class PieceState : uint8_t { kNotAskedFor, kAskedFor, kUnreadable };
  mutable absl::Mutex pieces_mutex_;  // held while one is read: who wants another blob of it waits for that
  mutable std::vector<PieceState> pieces_ ABSL_GUARDED_BY(pieces_mutex_);
  // Of LoadFrame: a page fault must not wait for a new one.
  mutable absl::Mutex loaders_mutex_;
  mutable std::vector<std::unique_ptr<FrameLoader>> loaders_ ABSL_GUARDED_BY(loaders_mutex_);
};

}  // namespace rekindle::store
