// Reads one committed image. The packs it needs are opened, and so kept from gc, when it is made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dedup_store/manifest.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// What the image's home pack holds; DataLoss when it is damaged, NotFound when gc took it.
absl::StatusOr<Manifest> ReadManifest(StoreCore& core, const ImageRecord& image);

class ImageReaderImpl : public ImageReader {
 public:
  static absl::StatusOr<std::unique_ptr<ImageReaderImpl>> Open(const std::shared_ptr<StoreCore>& core,
                                                               ImageRecord record);

  const ImageInfo& info() const override { return record_.info; }
  const std::vector<ObjectInfo>& objects() const override { return objects_; }
  absl::StatusOr<std::string> ReadBlob(absl::string_view name) const override;
  absl::StatusOr<std::vector<PageRun>> Runs(absl::string_view name) const override;
  absl::Status ReadPages(absl::string_view name, uint64_t address, absl::Span<std::byte> out) const override;
  absl::Status ReadRanges(absl::string_view name, absl::Span<const PageRun> ranges,
                          const PageSink& sink) const override;

  const ImageRecord& record() const { return record_; }
  const Manifest& manifest() const { return manifest_; }
  // In the order of manifest().packs.
  const std::vector<std::shared_ptr<const Pack>>& packs() const { return packs_; }
  // The extents of a paged object; null when there is none of this name.
  const std::vector<Extent>* FindExtents(absl::string_view name) const;

 private:
  struct Piece;
  struct Task;
  class TaskRunner;
  // Where pages go: to a sink, or into memory that begins at an address.
  struct Target {
    const PageSink* sink = nullptr;
    uint64_t address = 0;
    absl::Span<std::byte> memory;
  };

  ImageReaderImpl(std::shared_ptr<StoreCore> core, ImageRecord record)
      : core_(std::move(core)), record_(std::move(record)) {}
  absl::Status Load();
  std::vector<Task> Plan(const std::vector<Extent>& extents, absl::Span<const PageRun> ranges,
                         std::vector<Piece>& pieces) const;
  absl::Status Run(absl::string_view object, const std::vector<Extent>& extents,
                   absl::Span<const PageRun> ranges, size_t max_threads, const Target& target) const;
  absl::Status ReadExtents(absl::string_view object, const std::vector<Extent>& extents, uint64_t address,
                           absl::Span<std::byte> out) const;

  std::shared_ptr<StoreCore> core_;
  ImageRecord record_;
  Manifest manifest_;
  std::vector<std::shared_ptr<const Pack>> packs_;
  std::vector<ObjectInfo> objects_;
};

}  // namespace rekindle::store
