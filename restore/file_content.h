// The content of a file as an image has it: a paged object by offset, without pages where the file has holes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// Not thread-safe. `image` must outlive it.
class FileContent {
 public:
  // NotFound: the image has no content of this file. An empty one needs none.
  static absl::StatusOr<FileContent> Open(const store::ImageReader& image, const v1::WrittenFile& file);

  uint64_t size() const { return size_; }
  uint64_t data_bytes() const { return data_bytes_; }  // that are not zero pages: the room it takes

  // Is that what lies in `fd`, size included?
  absl::StatusOr<bool> IsIn(int fd) const;
  // Are they the same as far as both go?
  absl::StatusOr<bool> BeginsAsIn(int fd) const;
  // Makes the file so. Writes only what differs, and makes holes where the content is zero: may be
  // interrupted and done again; one that was shorter is so until all of it is there. ResourceExhausted: the
  // disk is full.
  absl::Status WriteTo(int fd) const;
  // Fills a new file with `head` and, behind it, the content. `*cancel` ends it soon with Cancelled.
  absl::Status WriteBehind(absl::string_view head, int file, const std::string& path,
                           const std::atomic<bool>* cancel = nullptr) const;

 private:
  explicit FileContent(const store::ImageReader& image) : image_(&image) {}
  // The first that ends behind `offset`.
  std::vector<store::PageRun>::const_iterator FirstRunBehind(uint64_t offset) const;
  // From `offset` on, where this or the file in `fd` has something else than a hole, or the end.
  uint64_t NextNotZero(int fd, uint64_t offset) const;
  absl::StatusOr<bool> IsEqual(int fd, uint64_t end) const;
  // Up to `out.size()` bytes at `offset`, a multiple of the page size.
  absl::Status Read(uint64_t offset, absl::Span<std::byte> out) const;

  const store::ImageReader* image_;
  std::string object_;
  uint64_t size_ = 0, data_bytes_ = 0;
  std::vector<store::PageRun> runs_;  // ascending, without zero pages
};

}  // namespace rekindle::restore
