// An image as one run of bytes, for a file, a pipe or a network: "rekindle-image1\n", then records
// (proto/rekindle/v1/image_stream.proto), each behind its length (4 bytes, little endian) and followed by its
// data. The last one has the SHA-256 of all before it. docs/image-stream.md says more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dedup_store/hashing.h"
#include "dedup_store/store.h"
#include "rekindle/v1/image_stream.pb.h"

namespace rekindle::store {

// Of one record: more would have to be held in memory by whoever reads it.
inline constexpr uint32_t kMaxStreamData = 4u << 20;
inline constexpr uint32_t kImageStreamVersion = 1;

// What names an image's content in every store that has it: its digest in the store where it was taken.
std::string OriginOf(const ImageInfo& image);

// Not thread-safe.
class ImageStreamWriter {
 public:
  // Gets the bytes in order; a status other than OK ends the writing.
  using Sink = std::function<absl::Status(absl::string_view bytes)>;
  explicit ImageStreamWriter(Sink sink) : sink_(std::move(sink)) {}

  // The header comes first. `data`, at most kMaxStreamData, is sent as it is: `record` says whether it is
  // compressed.
  absl::Status Put(v1::ImageStreamRecord record, absl::string_view data = {});
  absl::Status End();
  uint64_t bytes() const { return bytes_; }

 private:
  absl::Status Send(absl::string_view bytes);
  absl::Status SendRecord(const v1::ImageStreamRecord& record);

  const Sink sink_;
  Sha256 hash_;
  uint64_t bytes_ = 0;
};

// DataLoss: it is not what `out` holds.
absl::Status DecompressStreamData(absl::string_view compressed, absl::Span<std::byte> out);

// Not thread-safe. Whatever comes is refused with a reason: InvalidArgument when it is no image stream,
// FailedPrecondition when it is of another version, DataLoss when it is cut off or not as it was sent.
class ImageStreamReader {
 public:
  // Fills the beginning of `out` and says how much, 0 at the end.
  using Source = std::function<absl::StatusOr<size_t>(absl::Span<std::byte> out)>;
  explicit ImageStreamReader(Source source) : source_(std::move(source)) {}

  absl::StatusOr<v1::ImageStreamHeader> ReadHeader();
  // The next record after the header. An `end` means that all before it is what was sent, and that there is
  // nothing behind it.
  absl::StatusOr<v1::ImageStreamRecord> Next();
  // The data of the last record, which must be as much as `out` holds, once. What is compressed goes to
  // `compressed`, from which DecompressStreamData fills `out`, on any thread, while the reading goes on.
  // Empty: `out` is filled.
  absl::Status ReadDataAsSent(absl::Span<std::byte> out, std::string* compressed);
  // As it comes, at most kMaxStreamData uncompressed.
  absl::StatusOr<std::string> ReadData();

 private:
  absl::Status Fill(void* out, size_t size);
  absl::StatusOr<v1::ImageStreamRecord> ReadRecord();
  absl::Status CheckEnd(const v1::ImageStreamEnd& end);
  // Of the last record's data, which they take.
  absl::Status ReadAsItIs(void* out, size_t size);

  const Source source_;
  Sha256 hash_;
  bool empty_ = true;        // nothing has come yet
  uint32_t data_bytes_ = 0;  // of the last record, not read yet
  bool zstd_ = false;
};

}  // namespace rekindle::store
