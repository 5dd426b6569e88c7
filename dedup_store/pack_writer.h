// Writes one new pack file. Several threads append frames, each through an Appender of its own; then one
// thread seals the pack. Until Seal has returned the file is not part of the store; destroying an unsealed
// PackWriter removes it. A writer that dies leaves a file that nobody locks: gc removes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "dedup_store/block_io.h"
#include "dedup_store/format.h"
#include "dedup_store/hashing.h"

struct ZSTD_CCtx_s;

namespace rekindle::store {

inline constexpr size_t kLeastGain = 12, kLeastGainSparing = 4;
inline constexpr int kUntriedSparing = 15;

struct PackWriterOptions {
  std::string directory;
  StoreUuid uuid{};
  StoreSeed seed{};
  int64_t created_unix_ns = 0;
  uint64_t expected_bytes = 0;  // at most this much data will come; buffers are sized for it
  size_t appenders = 1;         // at most so many at a time
  // A frame that does not shrink by this part of it (one in N) stays raw: it can then be read in place, page
  // by page.
  size_t least_gain = kLeastGain;
  Codec raw = Codec::kRaw;  // of these: kRaw or kRawKeyed
  // After two neighbours that were alike so many are taken for the same without a trial.
  int untried = 1;
  const Fingerprinter* fingerprinter = nullptr;
  // When set, asked before `bytes` more of the file are taken, of which `reserved` are allocated on disk
  // already: its refusal ends the writing.
  std::function<absl::Status(uint64_t bytes, uint64_t reserved)> may_take;
};

// One page to store: its bytes, fingerprint and a number by which the caller knows it.
struct NewPage {
  const std::byte* data = nullptr;
  uint64_t fingerprint = 0;
  uint32_t ordinal = 0;
};

class PackWriter {
 public:
  static absl::StatusOr<std::unique_ptr<PackWriter>> Create(BlockIo* io, const PackWriterOptions& options);
  ~PackWriter();

  uint64_t id() const { return id_; }
  const std::string& path() const { return path_; }

  // Where a page came to lie: `locations[i] = {ordinal, page number in this pack}`.
  struct Placed {
    uint32_t ordinal;
    uint32_t page;
  };

  // Belongs to one thread.
  class Appender {
   public:
    explicit Appender(PackWriter* writer);
    ~Appender();
    Appender(const Appender&) = delete;
    Appender& operator=(const Appender&) = delete;
    // Stores up to kMaxZstdFramePages pages as one frame, compressed with zstd `level` (0: never) when that
    // saves enough; raw neighbours are joined to longer frames. Their final numbers are reported in `placed`
    // by this or a later call.
    absl::Status Append(absl::Span<const NewPage> pages, int level, std::vector<Placed>* placed);
    // Writes what is still held back.
    absl::Status Flush(std::vector<Placed>* placed);

   private:
    struct HeldFrame {
      uint32_t offset = 0;  // in the buffer, or in compressed_
      uint32_t stored_bytes = 0;
      uint32_t first = 0;  // in pages_
      uint32_t pages = 0;
      Codec codec = Codec::kRaw;
      uint64_t fingerprint = 0;
      Hash128 digest;
    };
    struct HeldPage {
      uint64_t fingerprint;
      uint32_t ordinal;
    };
    Codec ChooseCodec(const std::byte* data, size_t bytes);
    Codec BestCodec(const std::byte* data, size_t bytes);
    size_t WorthStoring(size_t bytes) const { return bytes - bytes / writer_->options_.least_gain; }
    size_t CompressInto(std::byte* target, const std::byte* data, size_t bytes, int level);
    bool Compress(const std::byte* data, size_t bytes, int level, HeldFrame& frame);
    void AddRaw(const std::byte* data, absl::Span<const NewPage> pages, HeldFrame& frame);
    // `stored`: `bytes` uncompressed.
    void Hash(const std::byte* data, size_t bytes, absl::Span<const std::byte> stored, HeldFrame& frame);

    PackWriter* writer_;
    ZSTD_CCtx_s* zstd_;
    std::vector<std::byte> gathered_, trial_, planes_, compressed_;
    size_t compressed_bytes_ = 0;
    Codec last_codec_ = Codec::kRaw;
    bool two_alike_ = false;
    int untried_ = 0;  // since the last trial
    WriteBuffer* buffer_ = nullptr;
    size_t raw_bytes_ = 0;
    std::vector<HeldFrame> frames_;
    std::vector<HeldPage> pages_;
    const std::byte* raw_end_ =
        nullptr;  // where the pages of the last frame, a raw one, end in the caller's memory
    Sha256 sha_;
  };

  // Valid when every Appender has been flushed.
  const std::vector<uint64_t>& fingerprints() const { return fingerprints_; }
  uint64_t stored_bytes() const { return stored_bytes_; }
  uint32_t pages() const { return static_cast<uint32_t>(fingerprints_.size()); }
  uint32_t frames() const { return static_cast<uint32_t>(frames_.size()); }

  // What the sealed file and the page table will take beyond the frames themselves, without the image record.
  uint64_t MetadataBytes(size_t manifest_bytes) const;
  // Writes frame table, manifest and footer and makes all of it durable, name included. The file stays (see
  // Keep).
  absl::Status Seal(absl::string_view manifest, absl::string_view image_record);
  uint64_t file_bytes() const { return next_offset_.load(); }
  // The content identity of a page that was placed.
  PageIdentity IdentityOf(uint32_t page) const;
  // Lets others read the sealed file, and still keeps gc away. Aborted when a gc has removed it instead.
  absl::Status ShareLock();
  // The pack is in the catalog now: the destructor leaves it.
  void Keep() { keep_ = true; }

 private:
  friend class Appender;
  PackWriter(BlockIo* io, PackWriterOptions options) : io_(io), options_(std::move(options)) {}
  absl::Status Begin();
  // Takes the next `bytes` of the file.
  absl::StatusOr<uint64_t> TakeRoom(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // More than what comes now.
  bool MayTakeAhead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  class SectionStream;

  BlockIo* const io_;
  const PackWriterOptions options_;
  uint64_t id_ = 0;
  std::string path_;
  std::unique_ptr<BlockFile> file_;
  std::unique_ptr<WriteQueue> queue_;
  bool keep_ = false;

  absl::Mutex mutex_;
  std::atomic<uint64_t> next_offset_{kPackHeaderBytes};
  uint64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;  // what was to be taken ahead
  // Appended to under mutex_; read without it only after all appenders have ended.
  std::vector<FrameEntry> frames_;
  std::vector<uint64_t> fingerprints_;
  uint64_t stored_bytes_ = 0;
};

}  // namespace rekindle::store
