#include "dedup_store/pack_writer.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/direct_buffer.h"
#include "dedup_store/locked_file.h"
#include "dedup_store/transposition.h"

namespace rekindle::store {

namespace {

// Of one buffer. Where there are many appenders all of them together are bounded: they are pinned.
constexpr size_t kBufferBytes = size_t{4} << 20, kLeastOfMany = size_t{1} << 20;
constexpr size_t kMostBytesOfBuffers = size_t{128} << 20;
constexpr size_t kFrameBytes = kMaxZstdFramePages * kPageSize;
// Disk space is taken in steps of this: a full disk shows early, and the file lies in few pieces. Only where
// so many of them are free: what is taken too much nobody else has until the pack is sealed.
constexpr uint64_t kAllocationStep = uint64_t{64} << 20;
constexpr uint64_t kLeastFreeSteps = 2;
// Transposing takes its time on both ways; what it saves has to be this part of what is stored.
constexpr size_t kWorthTransposing = 16;
constexpr size_t kSampleBytes = 8192;
constexpr size_t kSamplePiece = 1024;

// Planes of words, each compressed by itself: those of floating-point mantissas have nothing to give, while
// those of their exponents and of the upper bytes of pointers do.
constexpr size_t kPlanes = 8;
constexpr int kFastestLevel = -50;

// Whether the bytes are spread as evenly as random ones: by the sum of squared counts in a sample of 2048.
bool LooksRandom(const std::byte* data, size_t bytes) {
  constexpr size_t kSample = 2048;
  constexpr uint32_t kExpected = kSample + kSample * kSample / 256;
  if (bytes < kSample) return false;
  uint16_t counts[256] = {};
  const size_t step = bytes / kSample;
  for (size_t i = 0; i < kSample; ++i) ++counts[static_cast<uint8_t>(data[i * step])];
  uint32_t sum = 0;
  for (uint32_t count : counts) sum += count * count;
  return sum < kExpected + kExpected / 16;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackWriter>> PackWriter::Create(BlockIo* io,
                                                               const PackWriterOptions& options) {
  auto writer = std::unique_ptr<PackWriter>(new PackWriter(io, options));
  RK_RETURN_IF_ERROR(writer->Begin());
  return writer;
}

absl::Status PackWriter::Begin() {
  RK_ASSIGN_OR_RETURN(file_, CreateLocked(io_, /*direct=*/true, [&] {
                        id_ = NewFileId();
                        return path_ = absl::StrCat(options_.directory, "/", PackFileName(id_));
                      }));
  const size_t least = options_.appenders + 1, most = options_.appenders + 6;
  const size_t most_bytes =
      std::clamp(kMostBytesOfBuffers / most / kFrameBytes * kFrameBytes, kLeastOfMany, kBufferBytes);
  size_t buffer_bytes =
      std::clamp(DirectCeiling(options_.expected_bytes + kFrameBytes), 2 * kFrameBytes, most_bytes);
  // Zeroing and pinning them takes time too: only what is large has use for many.
  size_t wanted = options_.expected_bytes / (8 * buffer_bytes) + 1;
  size_t buffers = std::clamp(wanted, least, most);
  RK_ASSIGN_OR_RETURN(queue_, file_->NewWriteQueue(buffer_bytes, buffers));

  RK_ASSIGN_OR_RETURN(WriteBuffer * buffer, queue_->Acquire());
  memset(buffer->data, 0, kPackHeaderBytes);
  PackHeader header{};
  memcpy(header.magic, kPackMagic, sizeof header.magic);
  header.version = kFormatVersion;
  header.page_size = kPageSize;
  memcpy(header.store_uuid, options_.uuid.data(), sizeof header.store_uuid);
  header.pack_id = id_;
  header.created_unix_ns = options_.created_unix_ns;
  memcpy(header.seed, options_.seed.data(), sizeof header.seed);
  header.checksum = Checksum(&header, offsetof(PackHeader, checksum));
  memcpy(buffer->data, &header, sizeof header);
  return queue_->Submit(buffer, kPackHeaderBytes, 0);
}

PackWriter::~PackWriter() {
  if (queue_ != nullptr) (void)queue_->Drain();
  queue_.reset();
  if (keep_ || file_ == nullptr) return;
  if (absl::Status status = io_->Unlink(path_); !status.ok()) {
    Log(LogLevel::kWarning, absl::StrCat(status.message(), "; the next gc of the store removes it"));
  }
}

absl::StatusOr<uint64_t> PackWriter::TakeRoom(size_t bytes) {
  uint64_t offset = next_offset_.load(std::memory_order_relaxed);
  if (options_.may_take) {
    RK_RETURN_IF_ERROR(options_.may_take(bytes, allocated_ > offset ? allocated_ - offset : 0));
  }
  // Small packs need no plan: their few writes find a full disk themselves.
  const uint64_t end = offset + bytes;
  if (options_.expected_bytes > kAllocationStep && end > allocated_) {
    // Of an image that is mostly as its parent little may come.
    uint64_t step = end - allocated_;
    const bool ahead = step < kAllocationStep && MayTakeAhead();
    if (ahead) step = kAllocationStep;
    absl::Status status = file_->Allocate(allocated_, step);
    if (ahead && absl::IsResourceExhausted(status)) {
      // A quota, or others were faster. What the file system has given nevertheless goes back; all that was
      // submitted lies before `offset`. The first time the file may get longer, which gives nothing back on
      // ext4; the second time does.
      refused_ = true;
      for (int time = 0; time < 2; ++time) RK_RETURN_IF_ERROR(file_->Truncate(std::max(allocated_, offset)));
      step = end - allocated_;
      status = file_->Allocate(allocated_, step);
    }
    // Where that can't be done a full disk is only found later.
    if (!status.ok() && !absl::IsUnimplemented(status)) return status;
    allocated_ += step;
  }
  next_offset_.store(end, std::memory_order_relaxed);
  return offset;
}

bool PackWriter::MayTakeAhead() const {
  if (refused_) return false;
  const absl::StatusOr<uint64_t> free = file_->FreeBytes();
  return !free.ok() || *free >= kLeastFreeSteps * kAllocationStep;
}

PackWriter::Appender::Appender(PackWriter* writer) : writer_(writer), zstd_(ZSTD_createCCtx()) {}

PackWriter::Appender::~Appender() {
  ZSTD_freeCCtx(zstd_);
  // A buffer that was never submitted goes with the queue.
}

// Neighbours are often alike.
Codec PackWriter::Appender::ChooseCodec(const std::byte* data, size_t bytes) {
  if (two_alike_ && untried_ < writer_->options_.untried) {
    ++untried_;
    return last_codec_;
  }
  const Codec codec = BestCodec(data, bytes);
  two_alike_ = codec == last_codec_;
  untried_ = 0;
  last_codec_ = codec;
  return codec;
}

// Compresses pieces taken from all over the frame; that costs a tenth of compressing what won't shrink.
Codec PackWriter::Appender::BestCodec(const std::byte* data, size_t bytes) {
  std::byte sample[kSampleBytes];
  size_t pieces = kSampleBytes / kSamplePiece;
  if (bytes <= kSampleBytes) {
    memcpy(sample, data, bytes);
  } else {
    size_t step = (bytes - kSamplePiece) / (pieces - 1);
    for (size_t i = 0; i < pieces; ++i) memcpy(sample + i * kSamplePiece, data + i * step, kSamplePiece);
    bytes = kSampleBytes;
  }
  trial_.resize(ZSTD_compressBound(kFrameBytes));
  std::byte planes[kSampleBytes];
  Transpose(sample, planes, bytes);
  size_t in_place = ZSTD_compressCCtx(zstd_, trial_.data(), trial_.size(), sample, bytes, 1);
  size_t transposed = ZSTD_compressCCtx(zstd_, trial_.data(), trial_.size(), planes, bytes, 1);
  if (std::min(in_place, transposed) > WorthStoring(bytes)) return Codec::kRaw;
  return transposed < in_place - in_place / kWorthTransposing ? Codec::kZstdOfPlanes : Codec::kZstd;
}

absl::Status PackWriter::Appender::Append(absl::Span<const NewPage> pages, int level,
                                          std::vector<Placed>* placed) {
  const size_t bytes = pages.size() * kPageSize;
  if (buffer_ != nullptr && DirectCeiling(raw_bytes_ + compressed_bytes_ + bytes) > buffer_->capacity) {
    RK_RETURN_IF_ERROR(Flush(placed));
  }
  if (buffer_ == nullptr) {
    RK_ASSIGN_OR_RETURN(buffer_, writer_->queue_->Acquire());
  }

  bool adjacent = true;
  for (size_t i = 1; i < pages.size(); ++i) adjacent &= pages[i].data == pages[i - 1].data + kPageSize;
  const std::byte* data = pages[0].data;
  if (!adjacent) {
    gathered_.resize(kFrameBytes);
    for (size_t i = 0; i < pages.size(); ++i)
      memcpy(gathered_.data() + i * kPageSize, pages[i].data, kPageSize);
    data = gathered_.data();
  }

  HeldFrame frame;
  frame.first = static_cast<uint32_t>(pages_.size());
  frame.pages = static_cast<uint32_t>(pages.size());
  if (level > 0 && Compress(data, bytes, level, frame)) {
    frames_.push_back(frame);
    raw_end_ = nullptr;
  } else {
    AddRaw(data, pages, frame);
  }
  for (const NewPage& page : pages) pages_.push_back({page.fingerprint, page.ordinal});
  return absl::OkStatus();
}

void PackWriter::Appender::Hash(const std::byte* data, size_t bytes, absl::Span<const std::byte> stored,
                                HeldFrame& frame) {
  const Fingerprinter& fingerprinter = *writer_->options_.fingerprinter;
  frame.digest = DigestOfFrame(sha_, fingerprinter, frame.codec, stored);
  frame.fingerprint = frame.codec == Codec::kRawKeyed ? frame.digest.lo : fingerprinter.Of(data, bytes);
}

size_t PackWriter::Appender::CompressInto(std::byte* target, const std::byte* data, size_t bytes, int level) {
  size_t n = ZSTD_compressCCtx(zstd_, target, trial_.size(), data, bytes, level);
  return ZSTD_isError(n) ? kFrameBytes : n;
}

bool PackWriter::Appender::Compress(const std::byte* data, size_t bytes, int level, HeldFrame& frame) {
  const Codec codec = ChooseCodec(data, bytes);
  if (codec == Codec::kRaw) return false;
  // Room for one more than fits: each plane is a zstd frame of its own, bounded by trial_.
  const size_t room = compressed_bytes_ + trial_.size() + 2 * kFrameBytes;
  if (compressed_.size() < room) compressed_.resize(room * 2);
  std::byte* target = compressed_.data() + compressed_bytes_;
  size_t n = 0;
  if (codec == Codec::kZstd) {
    n = CompressInto(target, data, bytes, level);
  } else {
    planes_.resize(kFrameBytes);
    Transpose(data, planes_.data(), bytes);
    const size_t plane_bytes = bytes / kPlanes;
    for (size_t plane = 0; plane < kPlanes; ++plane) {
      const std::byte* from = planes_.data() + plane * plane_bytes;
      n +=
          CompressInto(target + n, from, plane_bytes, LooksRandom(from, plane_bytes) ? kFastestLevel : level);
    }
  }
  if (n > WorthStoring(bytes)) return false;
  frame.codec = codec;
  frame.stored_bytes = static_cast<uint32_t>(n);
  frame.offset = static_cast<uint32_t>(compressed_bytes_);
  compressed_bytes_ += n;
  Hash(data, bytes, {target, n}, frame);
  return true;
}

void PackWriter::Appender::AddRaw(const std::byte* data, absl::Span<const NewPage> pages, HeldFrame& frame) {
  const size_t bytes = pages.size() * kPageSize;
  memcpy(buffer_->data + raw_bytes_, data, bytes);
  const bool joins = raw_end_ == pages[0].data && frames_.back().pages + frame.pages <= kMaxFramePages;
  if (joins) {
    frames_.back().pages += frame.pages;
    frames_.back().stored_bytes += static_cast<uint32_t>(bytes);
  } else {
    frame.codec = writer_->options_.raw;
    frame.stored_bytes = static_cast<uint32_t>(bytes);
    frame.offset = static_cast<uint32_t>(raw_bytes_);
    frames_.push_back(frame);
  }
  raw_bytes_ += bytes;
  const bool adjacent = data == pages[0].data;
  raw_end_ = adjacent ? pages[0].data + bytes : nullptr;
}

absl::Status PackWriter::Appender::Flush(std::vector<Placed>* placed) {
  if (buffer_ == nullptr || frames_.empty()) return absl::OkStatus();
  // Raw frames first, at whole pages; the compressed ones close-packed behind them.
  if (compressed_bytes_ > 0) memcpy(buffer_->data + raw_bytes_, compressed_.data(), compressed_bytes_);
  size_t used = raw_bytes_ + compressed_bytes_;
  size_t padded = DirectCeiling(used);
  memset(buffer_->data + used, 0, padded - used);
  for (HeldFrame& frame : frames_) {
    if (!IsRaw(frame.codec)) continue;
    const std::byte* pages = buffer_->data + frame.offset;
    Hash(pages, frame.stored_bytes, {pages, frame.stored_bytes}, frame);
  }
  uint64_t offset = 0;
  {
    // Under one lock, so that frames come in the order of their offsets.
    PackWriter& w = *writer_;
    absl::MutexLock lock(&w.mutex_);
    RK_ASSIGN_OR_RETURN(offset, w.TakeRoom(padded));
    for (bool raw : {true, false}) {
      for (const HeldFrame& frame : frames_) {
        if (IsRaw(frame.codec) != raw) continue;
        uint64_t at = offset + frame.offset + (raw ? 0 : raw_bytes_);
        auto page = static_cast<uint32_t>(w.fingerprints_.size());
        FrameEntry entry{
            at | static_cast<uint64_t>(frame.codec) << 56, frame.stored_bytes, page, frame.fingerprint, {}};
        memcpy(entry.digest, &frame.digest, sizeof entry.digest);
        w.frames_.push_back(entry);
        w.stored_bytes_ += frame.stored_bytes;
        for (uint32_t i = frame.first; i < frame.first + frame.pages; ++i) {
          w.fingerprints_.push_back(pages_[i].fingerprint);
          placed->push_back({pages_[i].ordinal, page++});
        }
      }
    }
  }
  frames_.clear();
  pages_.clear();
  raw_end_ = nullptr;
  raw_bytes_ = compressed_bytes_ = 0;
  return writer_->queue_->Submit(std::exchange(buffer_, nullptr), padded, offset);
}

PageIdentity PackWriter::IdentityOf(uint32_t page) const { return IdentityOfPage(frames_, page); }

absl::Status PackWriter::ShareLock() {
  RK_RETURN_IF_ERROR(file_->Lock(LockMode::kShared, true).status());
  RK_RETURN_IF_ERROR(file_->Revalidate());
  RK_ASSIGN_OR_RETURN(bool linked, file_->IsLinked());
  if (linked) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("a gc removed the new pack ", path_, "; nothing is lost, try again"));
}

// Cuts a stream of bytes into aligned writes.
class PackWriter::SectionStream {
 public:
  SectionStream(PackWriter* writer, uint64_t offset) : writer_(writer), written_(offset), position_(offset) {}
  uint64_t position() const { return position_; }

  absl::Status Add(const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    position_ += bytes;
    while (bytes > 0) {
      if (buffer_ == nullptr) {
        RK_ASSIGN_OR_RETURN(buffer_, writer_->queue_->Acquire());
      }
      size_t n = std::min(bytes, buffer_->capacity - used_);
      memcpy(buffer_->data + used_, from, n);
      used_ += n;
      from += n;
      bytes -= n;
      if (used_ == buffer_->capacity) RK_RETURN_IF_ERROR(WriteOut());
    }
    return absl::OkStatus();
  }
  absl::Status PadTo(uint64_t position) {
    static constexpr char kZeros[kDirectAlignment] = {};
    while (position_ < position) {
      RK_RETURN_IF_ERROR(Add(kZeros, std::min<uint64_t>(sizeof kZeros, position - position_)));
    }
    return absl::OkStatus();
  }
  absl::Status WriteOut() {
    if (used_ == 0) return absl::OkStatus();
    uint64_t at = std::exchange(written_, written_ + used_);
    return writer_->queue_->Submit(std::exchange(buffer_, nullptr), std::exchange(used_, 0), at);
  }

 private:
  PackWriter* writer_;
  WriteBuffer* buffer_ = nullptr;
  size_t used_ = 0;
  uint64_t written_;
  uint64_t position_;
};

uint64_t PackWriter::MetadataBytes(size_t manifest_bytes) const {
  uint64_t end = DirectCeiling(next_offset_.load() + frames_.size() * sizeof(FrameEntry) + manifest_bytes +
                               sizeof(PackFooter));
  return end - stored_bytes_ + sizeof(PageTableHeader) + pages() * sizeof(uint64_t);
}

absl::Status PackWriter::Seal(absl::string_view manifest, absl::string_view image_record) {
  PackFooter footer{};
  memcpy(footer.magic, kFooterMagic, sizeof footer.magic);
  footer.version = kFormatVersion;
  footer.section_count = kSectionCount;
  footer.pack_id = id_;
  footer.frames = frames();
  footer.pages = pages();
  footer.data_end = next_offset_.load();
  footer.stored_bytes = stored_bytes_;

  SectionStream stream(this, footer.data_end);
  const std::pair<const void*, size_t> sections[kSectionCount] = {
      {frames_.data(), frames_.size() * sizeof(FrameEntry)},
      {manifest.data(), manifest.size()},
      {image_record.data(), image_record.size()},
  };
  for (uint32_t i = 0; i < kSectionCount; ++i) {
    const auto& [data, bytes] = sections[i];
    footer.sections[i] = {stream.position(), bytes, Checksum(data, bytes)};
    RK_RETURN_IF_ERROR(stream.Add(data, bytes));
  }
  footer.checksum = Checksum(&footer, offsetof(PackFooter, checksum));
  uint64_t file_bytes = DirectCeiling(stream.position() + sizeof footer);
  RK_RETURN_IF_ERROR(stream.PadTo(file_bytes - sizeof footer));
  RK_RETURN_IF_ERROR(stream.Add(&footer, sizeof footer));
  RK_RETURN_IF_ERROR(stream.WriteOut());
  RK_RETURN_IF_ERROR(queue_->Drain());
  next_offset_.store(file_bytes);
  // What was allocated too much goes back.
  RK_RETURN_IF_ERROR(file_->Truncate(file_bytes));
  RK_RETURN_IF_ERROR(file_->Sync());
  return io_->SyncDirectory(options_.directory);
}

}  // namespace rekindle::store
