#include "dedup_store/index_file.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dedup_store/direct_buffer.h"
#include "dedup_store/locked_file.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

namespace {

constexpr size_t kReadEntries = (size_t{256} << 10) / sizeof(IndexEntry);
constexpr size_t kWriteBuffer = size_t{1} << 20;
constexpr size_t kWriteBuffers = 4;

uint64_t EntriesAt(uint64_t buckets_at, uint32_t bucket_bits) {
  return (buckets_at + ((uint64_t{1} << bucket_bits) + 1) * sizeof(uint32_t) + 7) / 8 * 8;
}

absl::Status DamagedIndex(const std::string& path) {
  return absl::DataLossError(absl::StrCat("the index file ", path, " is damaged"));
}

}  // namespace

bool IsHeaderOfIndex(const IndexHeader& header, uint64_t index_id, uint64_t file_bytes) {
  return memcmp(header.magic, kIndexMagic, sizeof header.magic) == 0 &&
         header.checksum == Checksum(&header, offsetof(IndexHeader, checksum)) &&
         header.index_id == index_id && header.version == kFormatVersion && header.bucket_bits <= 32 &&
         header.packs <= file_bytes / sizeof(uint64_t) && header.entries <= file_bytes / sizeof(IndexEntry) &&
         header.buckets_at == sizeof header + header.packs * sizeof(uint64_t) &&
         header.entries_at == EntriesAt(header.buckets_at, header.bucket_bits) &&
         header.entries_at + header.entries * sizeof(IndexEntry) <= file_bytes;
}

absl::StatusOr<std::unique_ptr<IndexScan>> IndexScan::Open(StoreCore* core, const IndexRecord& record) {
  auto scan = std::unique_ptr<IndexScan>(new IndexScan);
  RK_ASSIGN_OR_RETURN(scan->file_, core->io()->Open(core->index_path(record.id), false));
  RK_ASSIGN_OR_RETURN(const uint64_t size, scan->file_->Size());
  IndexHeader& header = scan->header_;
  if (size < sizeof header) return DamagedIndex(scan->file_->path());
  RK_RETURN_IF_ERROR(scan->file_->ReadAt(0, {reinterpret_cast<std::byte*>(&header), sizeof header}));
  if (!IsHeaderOfIndex(header, record.id, size) ||
      header.entries_at + header.entries * sizeof(IndexEntry) != size) {
    return DamagedIndex(scan->file_->path());
  }
  scan->pack_ids_.resize(header.packs);
  RK_RETURN_IF_ERROR(scan->file_->ReadAt(sizeof header, {reinterpret_cast<std::byte*>(scan->pack_ids_.data()),
                                                         header.packs * sizeof(uint64_t)}));
  return scan;
}

absl::Status IndexScan::Damaged() { return Failed(DamagedIndex(file_->path())); }

absl::Status IndexScan::Begin() {
  piece_.clear();
  at_ = 0;
  left_ = header_.entries;
  last_ = 0;
  if (checked_) return absl::OkStatus();
  checksum_.emplace();
  checksum_->Update(pack_ids_.data(), pack_ids_.size() * sizeof(uint64_t));
  std::vector<std::byte> buckets(kReadEntries * sizeof(IndexEntry));
  for (uint64_t at = header_.buckets_at; at < header_.entries_at;) {
    const size_t bytes = std::min<uint64_t>(buckets.size(), header_.entries_at - at);
    if (absl::Status read = file_->ReadAt(at, {buckets.data(), bytes}); !read.ok()) return Failed(read);
    checksum_->Update(buckets.data(), bytes);
    at += bytes;
  }
  // Of a file without entries this was all.
  if (left_ > 0) return absl::OkStatus();
  checked_ = true;
  return checksum_->Sum() == header_.body_checksum ? absl::OkStatus() : Damaged();
}

absl::Status IndexScan::ReadPiece() {
  piece_.resize(std::min<uint64_t>(left_, kReadEntries));
  at_ = piece_.size();  // nothing is handed out of what is not checked
  const size_t bytes = piece_.size() * sizeof(IndexEntry);
  const uint64_t from = header_.entries_at + (header_.entries - left_) * sizeof(IndexEntry);
  absl::Status read = file_->ReadAt(from, {reinterpret_cast<std::byte*>(piece_.data()), bytes});
  if (!read.ok()) return Failed(read);
  left_ -= piece_.size();
  for (const IndexEntry& entry : piece_) {
    if (entry.fingerprint < last_) return Damaged();
    last_ = entry.fingerprint;
  }
  if (!checked_) {
    checksum_->Update(piece_.data(), bytes);
    if (left_ == 0) {
      checked_ = true;
      if (!(checksum_->Sum() == header_.body_checksum)) return Damaged();
    }
  }
  at_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<IndexFileWriter>> IndexFileWriter::Create(
    StoreCore* core, uint32_t bucket_bits, absl::Span<const uint64_t> pack_ids) {
  auto writer = std::unique_ptr<IndexFileWriter>(new IndexFileWriter(core));
  IndexHeader& header = writer->header_;
  memcpy(header.magic, kIndexMagic, sizeof header.magic);
  header.version = kFormatVersion;
  header.bucket_bits = bucket_bits;
  header.index_id = NewFileId();
  header.packs = pack_ids.size();
  header.buckets_at = sizeof header + pack_ids.size() * sizeof(uint64_t);
  header.entries_at = EntriesAt(header.buckets_at, bucket_bits);
  RK_ASSIGN_OR_RETURN(writer->file_, CreateLocked(core->io(), /*direct=*/true, [&] {
                        return absl::StrCat(core->path(), "/tmp/", IndexFileName(header.index_id), ".",
                                            absl::Hex(NewFileId()));
                      }));
  writer->temporary_ = writer->file_->path();
  RK_ASSIGN_OR_RETURN(writer->queue_, writer->file_->NewWriteQueue(kWriteBuffer, kWriteBuffers));
  RK_ASSIGN_OR_RETURN(writer->buffer_, writer->queue_->Acquire());
  RK_RETURN_IF_ERROR(writer->PutBytes({reinterpret_cast<const std::byte*>(&header), sizeof header}));
  RK_RETURN_IF_ERROR(writer->AppendAll(pack_ids));
  return writer;
}

IndexFileWriter::~IndexFileWriter() {
  queue_.reset();  // nothing is written any more
  if (file_ == nullptr) return;
  (void)core_->io()->Unlink(temporary_);
  (void)core_->io()->Unlink(core_->index_path(header_.index_id));
}

absl::Status IndexFileWriter::Append(absl::Span<const std::byte> bytes) {
  checksum_.Update(bytes.data(), bytes.size());
  return PutBytes(bytes);
}

absl::Status IndexFileWriter::PutBytes(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (filled_ == kWriteBuffer) {
      RK_RETURN_IF_ERROR(SubmitBuffer());
      RK_ASSIGN_OR_RETURN(buffer_, queue_->Acquire());
    }
    const size_t n = std::min(bytes.size(), kWriteBuffer - filled_);
    memcpy(buffer_->data + filled_, bytes.data(), n);
    filled_ += n;
    bytes.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status IndexFileWriter::SubmitBuffer() {
  const size_t padded = DirectCeiling(filled_);
  memset(buffer_->data + filled_, 0, padded - filled_);
  if (submitted_ == 0) beginning_.assign(buffer_->data, buffer_->data + kDirectAlignment);
  const uint64_t at = submitted_;
  submitted_ += filled_;
  filled_ = 0;
  return queue_->Submit(std::exchange(buffer_, nullptr), padded, at);
}

absl::Status IndexFileWriter::AppendEntries(absl::Span<const IndexEntry> entries) {
  static constexpr std::byte kPadding[8] = {};
  if (const uint64_t at = submitted_ + filled_; at < header_.entries_at) {
    RK_RETURN_IF_ERROR(Append({kPadding, header_.entries_at - at}));
  }
  return AppendAll(entries);
}

// Into the last buffer where that is the first one, too.
absl::Status IndexFileWriter::PutHeader() {
  if (submitted_ == 0) {
    memcpy(buffer_->data, &header_, sizeof header_);
    return absl::OkStatus();
  }
  memcpy(beginning_.data(), &header_, sizeof header_);
  RK_RETURN_IF_ERROR(SubmitBuffer());
  RK_RETURN_IF_ERROR(queue_->Drain());  // what is there was written before
  RK_ASSIGN_OR_RETURN(WriteBuffer * first, queue_->Acquire());
  memcpy(first->data, beginning_.data(), beginning_.size());
  return queue_->Submit(first, beginning_.size(), 0);
}

absl::Status IndexFileWriter::Publish() {
  const uint64_t bytes = submitted_ + filled_;
  RK_RETURN_IF_ERROR(PutHeader());
  if (buffer_ != nullptr) RK_RETURN_IF_ERROR(SubmitBuffer());
  RK_RETURN_IF_ERROR(queue_->Drain());
  queue_.reset();
  RK_RETURN_IF_ERROR(file_->Truncate(bytes));
  RK_RETURN_IF_ERROR(file_->Sync());
  RK_RETURN_IF_ERROR(core_->io()->Rename(temporary_, core_->index_path(header_.index_id)));
  return core_->io()->SyncDirectory(core_->index_folder());
}

absl::StatusOr<NewIndexFile> IndexFileWriter::Finish(uint64_t entries) {
  RK_RETURN_IF_ERROR(AppendEntries({}));
  header_.entries = entries;
  header_.body_checksum = checksum_.Sum();
  header_.checksum = Checksum(&header_, offsetof(IndexHeader, checksum));
  RK_RETURN_IF_ERROR(Publish());
  const uint64_t bytes = header_.entries_at + entries * sizeof(IndexEntry);
  return NewIndexFile{{header_.index_id, entries, bytes}, std::move(file_)};
}

absl::Status VerifyIndexFile(StoreCore* core, const IndexRecord& record) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<IndexScan> scan, IndexScan::Open(core, record));
  RK_RETURN_IF_ERROR(scan->Begin());
  return scan->TakeUpTo(std::numeric_limits<uint64_t>::max(), [](const IndexEntry&) {});
}

}  // namespace rekindle::store
