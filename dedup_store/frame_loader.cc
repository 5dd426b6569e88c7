#include "dedup_store/frame_loader.h"

#include <zstd.h>

#include <cstring>

#include "base/status.h"
#include "dedup_store/transposition.h"

namespace rekindle::store {

namespace {

constexpr size_t kMaxRawBytes = size_t{kMaxFramePages} * kPageSize;
constexpr size_t kMaxPlainBytes = size_t{kMaxZstdFramePages} * kPageSize;

size_t PlainBytes(const Pack& pack, uint32_t frame) {
  return size_t{pack.FirstPageAfter(frame) - pack.frame(frame).first_page} * kPageSize;
}

}  // namespace

FrameLoader::FrameLoader(const Fingerprinter& fingerprinter)
    : fingerprinter_(fingerprinter), zstd_(ZSTD_createDCtx()) {}

FrameLoader::~FrameLoader() { ZSTD_freeDCtx(zstd_); }

absl::StatusOr<absl::Span<const std::byte>> FrameLoader::Read(const Pack& pack, uint32_t frame) {
  if (stored_ == nullptr) stored_.reset(new std::byte[kMaxRawBytes]);
  const FrameEntry& entry = pack.frame(frame);
  RK_RETURN_IF_ERROR(pack.file().ReadAt(entry.offset(), {stored_.get(), entry.stored_bytes}));
  return absl::Span<const std::byte>(stored_.get(), entry.stored_bytes);
}

absl::StatusOr<absl::Span<const std::byte>> FrameLoader::Load(const Pack& pack, uint32_t frame) {
  RK_ASSIGN_OR_RETURN(absl::Span<const std::byte> stored, Read(pack, frame));
  return Decode(pack, frame, stored.data());
}

absl::StatusOr<absl::Span<const std::byte>> FrameLoader::Decode(const Pack& pack, uint32_t frame,
                                                                const std::byte* stored) {
  const FrameEntry& entry = pack.frame(frame);
  const size_t bytes = PlainBytes(pack, frame);
  const std::byte* plain = stored;
  if (entry.codec() != Codec::kRaw) {
    const bool planes = entry.codec() == Codec::kZstdOfPlanes;
    if (plain_ == nullptr) plain_.reset(new std::byte[kMaxPlainBytes]);
    if (planes && planes_ == nullptr) planes_.reset(new std::byte[kMaxPlainBytes]);
    std::byte* target = planes ? planes_.get() : plain_.get();
    size_t n = ZSTD_decompressDCtx(zstd_, target, kMaxPlainBytes, stored, entry.stored_bytes);
    if (ZSTD_isError(n) || n != bytes) return absl::DataLossError("the compressed data is damaged");
    if (planes) TransposeBack(planes_.get(), plain_.get(), bytes);
    plain = plain_.get();
  }
  if (fingerprinter_.Of(plain, bytes) != entry.fingerprint) {
    return absl::DataLossError("the data does not fit its fingerprint");
  }
  return absl::Span<const std::byte>(plain, bytes);
}

PageComparer::PageComparer(const Fingerprinter& fingerprinter)
    : loader_(fingerprinter), page_(new std::byte[kPageSize]) {}

bool PageComparer::Equal(const Pack& pack, uint32_t page, const std::byte* bytes) {
  const uint32_t frame = pack.FrameOfPage(page);
  const FrameEntry& entry = pack.frame(frame);
  const size_t within = size_t{page - entry.first_page} * kPageSize;
  if (entry.codec() == Codec::kRaw) {
    return pack.file().ReadAt(entry.offset() + within, {page_.get(), kPageSize}).ok() &&
           memcmp(page_.get(), bytes, kPageSize) == 0;
  }
  for (Slot& slot : slots_) {
    if (slot.pack_id == pack.id() && slot.frame == frame) {
      return memcmp(slot.pages.get() + within, bytes, kPageSize) == 0;
    }
  }
  auto pages = loader_.Load(pack, frame);
  if (!pages.ok()) return false;
  Slot& slot = slots_[next_slot_++ % kSlots];
  if (slot.pages == nullptr) slot.pages.reset(new std::byte[kMaxPlainBytes]);
  memcpy(slot.pages.get(), pages->data(), pages->size());
  slot.pack_id = pack.id();
  slot.frame = frame;
  return memcmp(slot.pages.get() + within, bytes, kPageSize) == 0;
}

}  // namespace rekindle::store
