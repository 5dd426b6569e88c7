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
  absl::Span<const std::byte> pages(stored, PlainBytes(pack, frame));
  if (!IsRaw(entry.codec())) {
    if (plain_ == nullptr) plain_.reset(new std::byte[kMaxPlainBytes]);
    RK_RETURN_IF_ERROR(Decompress(entry, stored, {plain_.get(), pages.size()}));
    pages = {plain_.get(), pages.size()};
  }
  RK_RETURN_IF_ERROR(Verify(entry, pages));
  return pages;
}

absl::Status FrameLoader::LoadTo(const Pack& pack, uint32_t frame, absl::Span<std::byte> out) {
  const FrameEntry& entry = pack.frame(frame);
  if (!IsRaw(entry.codec())) {
    RK_ASSIGN_OR_RETURN(absl::Span<const std::byte> stored, Read(pack, frame));
    return DecodeTo(pack, frame, stored.data(), out);
  }
  RK_RETURN_IF_ERROR(pack.file().ReadAt(entry.offset(), out));
  return Verify(entry, out);
}

absl::Status FrameLoader::DecodeTo(const Pack& pack, uint32_t frame, const std::byte* stored,
                                   absl::Span<std::byte> out) {
  const FrameEntry& entry = pack.frame(frame);
  if (!IsRaw(entry.codec())) {
    RK_RETURN_IF_ERROR(Decompress(entry, stored, out));
  } else if (stored != out.data()) {
    memcpy(out.data(), stored, out.size());
  }
  return Verify(entry, out);
}

absl::Status FrameLoader::Decompress(const FrameEntry& entry, const std::byte* stored,
                                     absl::Span<std::byte> out) {
  const bool planes = entry.codec() == Codec::kZstdOfPlanes;
  if (planes && planes_ == nullptr) planes_.reset(new std::byte[kMaxPlainBytes]);
  size_t n =
      ZSTD_decompressDCtx(zstd_, planes ? planes_.get() : out.data(), out.size(), stored, entry.stored_bytes);
  if (ZSTD_isError(n) || n != out.size()) return absl::DataLossError("the compressed data is damaged");
  if (planes) TransposeBack(planes_.get(), out.data(), out.size());
  return absl::OkStatus();
}

absl::Status FrameLoader::Verify(const FrameEntry& entry, absl::Span<const std::byte> pages) const {
  if (fingerprinter_.Of(pages.data(), pages.size()) == entry.fingerprint) return absl::OkStatus();
  return absl::DataLossError("the data does not fit its fingerprint");
}

PageComparer::PageComparer(const Fingerprinter& fingerprinter)
    : loader_(fingerprinter), page_(new std::byte[kPageSize]) {}

bool PageComparer::Equal(const Pack& pack, uint32_t page, const std::byte* bytes, bool* damaged) {
  *damaged = false;
  const uint32_t frame = pack.FrameOfPage(page);
  const FrameEntry& entry = pack.frame(frame);
  const size_t within = size_t{page - entry.first_page} * kPageSize;
  if (IsRaw(entry.codec())) {
    if (pack.file().ReadAt(entry.offset() + within, {page_.get(), kPageSize}).ok() &&
        memcmp(page_.get(), bytes, kPageSize) == 0) {
      return true;
    }
    // Equal fingerprints of unequal pages: it is not what was written, most likely.
    *damaged = absl::IsDataLoss(loader_.Load(pack, frame).status());
    return false;
  }
  for (Slot& slot : slots_) {
    if (slot.pack_id == pack.id() && slot.frame == frame) {
      return memcmp(slot.pages.get() + within, bytes, kPageSize) == 0;
    }
  }
  auto pages = loader_.Load(pack, frame);
  if (!pages.ok()) {
    *damaged = absl::IsDataLoss(pages.status());
    return false;
  }
  Slot& slot = slots_[next_slot_++ % kSlots];
  if (slot.pages == nullptr) slot.pages.reset(new std::byte[kMaxPlainBytes]);
  memcpy(slot.pages.get(), pages->data(), pages->size());
  slot.pack_id = pack.id();
  slot.frame = frame;
  return memcmp(slot.pages.get() + within, bytes, kPageSize) == 0;
}

}  // namespace rekindle::store
