// Index files from front to back, as merges and checks go through them: read and written a piece at a time,
// so that their size costs no memory. page_index.cc has how one is looked into.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "dedup_store/block_io.h"
#include "dedup_store/catalog.h"
#include "dedup_store/format.h"
#include "dedup_store/hashing.h"

namespace rekindle::store {

class StoreCore;

// Whether a file of so many bytes can begin with this.
bool IsHeaderOfIndex(const IndexHeader& header, uint64_t index_id, uint64_t file_bytes);

// The bucket that has the entries of a fingerprint, where there are 2^bucket_bits.
inline uint64_t IndexBucketOf(uint64_t fingerprint, uint32_t bucket_bits) {
  return bucket_bits == 0 ? 0 : fingerprint >> (64 - bucket_bits);
}

// Not thread-safe.
class IndexScan {
 public:
  // DataLoss: the file is damaged. What can be seen by its header alone is found here.
  static absl::StatusOr<std::unique_ptr<IndexScan>> Open(StoreCore* core, const IndexRecord& record);

  uint64_t entries() const { return header_.entries; }
  absl::Span<const uint64_t> pack_ids() const { return pack_ids_; }

  // Before the first entry, and again for another time, whether or not all were taken before.
  absl::Status Begin();
  // Calls `take(entry)` for those that come next, in ascending order, up to this fingerprint. The first time
  // through all of the file is checked against its checksum; the end of it is not handed out before.
  template <typename F>
  absl::Status TakeUpTo(uint64_t fingerprint, const F& take) {
    for (;;) {
      for (; at_ < piece_.size(); ++at_) {
        if (piece_[at_].fingerprint > fingerprint) return absl::OkStatus();
        take(piece_[at_]);
      }
      if (left_ == 0) return absl::OkStatus();
      RK_RETURN_IF_ERROR(ReadPiece());
    }
  }
  const std::string& path() const { return file_->path(); }
  // Whether reading it has failed: it is not to be used any more.
  bool failed() const { return failed_; }

 private:
  IndexScan() = default;
  absl::Status Failed(const absl::Status& status) {
    failed_ = true;
    return status;
  }
  absl::Status Damaged();
  absl::Status ReadPiece();

  std::unique_ptr<BlockFile> file_;
  IndexHeader header_{};
  std::vector<uint64_t> pack_ids_;
  std::optional<RunningChecksum> checksum_;  // of what was read since Begin
  bool checked_ = false;
  bool failed_ = false;
  std::vector<IndexEntry> piece_;
  size_t at_ = 0;      // of piece_
  uint64_t left_ = 0;  // entries that were not read yet
  uint64_t last_ = 0;  // fingerprint that was read
};

// The file stays locked until this goes, so that gc does not take it for a dead writer's before it is in the
// catalog.
struct NewIndexFile {
  IndexRecord record;
  std::unique_ptr<BlockFile> file;
};

// Not thread-safe. What was not finished is removed.
class IndexFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<IndexFileWriter>> Create(StoreCore* core, uint32_t bucket_bits,
                                                                 absl::Span<const uint64_t> pack_ids);
  ~IndexFileWriter();

  // First the first entry of each of the buckets, and of one more behind them; then all entries.
  absl::Status AppendStarts(absl::Span<const uint32_t> starts) { return AppendAll(starts); }
  absl::Status AppendEntries(absl::Span<const IndexEntry> entries);
  // `entries`: how many there were.
  absl::StatusOr<NewIndexFile> Finish(uint64_t entries);

 private:
  explicit IndexFileWriter(StoreCore* core) : core_(core) {}
  template <typename T>
  absl::Status AppendAll(absl::Span<const T> values) {
    return Append({reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)});
  }
  absl::Status Append(absl::Span<const std::byte> bytes);
  absl::Status PutBytes(absl::Span<const std::byte> bytes);
  absl::Status SubmitBuffer();
  absl::Status PutHeader();
  absl::Status Publish();

  StoreCore* const core_;
  IndexHeader header_{};
  std::unique_ptr<BlockFile> file_;
  std::string temporary_;
  std::unique_ptr<WriteQueue> queue_;
  WriteBuffer* buffer_ = nullptr;
  size_t filled_ = 0;                 // of buffer_
  uint64_t submitted_ = 0;            // bytes of the file
  std::vector<std::byte> beginning_;  // of the file, once it is submitted: the header is known last
  RunningChecksum checksum_;
};

// Reads an index file wholly and checks it against its checksums.
absl::Status VerifyIndexFile(StoreCore* core, const IndexRecord& record);

}  // namespace rekindle::store
