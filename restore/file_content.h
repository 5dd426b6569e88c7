// The content of a file as an image has it: a paged object by offset, without pages where the file has holes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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

  // Its first bytes, a page at most.
  absl::StatusOr<std::string> Beginning(size_t bytes) const;

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
  // Fills an empty file that nobody has seen yet: one that was interrupted is of no use.
  absl::Status Fill(int fd) const;
  // Fills a new file with `head` and, behind it, the content. `*cancel` ends it soon with Cancelled.
  absl::Status WriteBehind(absl::string_view head, int file, const std::string& path,
                           const std::atomic<bool>* cancel = nullptr) const;

 private:
  explicit FileContent(const store::ImageReader& image) : image_(&image) {}
  using Piece = std::function<absl::Status(uint64_t offset, absl::Span<const std::byte> bytes)>;
  // Below `end`, all that is no hole in the content, in no given order and from several threads at once; only
  // the last piece is not of whole pages.
  absl::Status ForEachPiece(uint64_t end, const Piece& piece) const;
  // Below `end`, what the file in `fd` has where the content has none: pieces with bytes other than zero.
  absl::Status ForEachSuperfluous(int fd, uint64_t end, const Piece& piece) const;
  // What the content does not have.
  absl::Status MakeZero(int fd) const;
  // Writes what is behind `begin`, in order.
  absl::Status Append(int fd, uint64_t begin) const;
  absl::StatusOr<bool> IsEqual(int fd, uint64_t end) const;

  const store::ImageReader* image_;
  std::string object_;
  uint64_t size_ = 0, data_bytes_ = 0;
  std::vector<store::PageRun> runs_;  // ascending, without zero pages
};

}  // namespace rekindle::restore
