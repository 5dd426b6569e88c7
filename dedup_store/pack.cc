#include "dedup_store/pack.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::store {

namespace {

constexpr uint64_t kMaxSectionBytes = uint64_t{1} << 40;

template <typename T>
absl::Span<std::byte> BytesOf(T& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof value};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pack>> Pack::Open(std::unique_ptr<BlockFile> file, uint64_t id,
                                                 const StoreUuid& uuid) {
  return Open(std::move(file), id, uuid, Wanted::kAll);
}

absl::StatusOr<std::unique_ptr<Pack>> Pack::OpenForSections(std::unique_ptr<BlockFile> file, uint64_t id,
                                                            const StoreUuid& uuid) {
  return Open(std::move(file), id, uuid, Wanted::kSections);
}

absl::StatusOr<std::unique_ptr<Pack>> Pack::Open(std::unique_ptr<BlockFile> file, uint64_t id,
                                                 const StoreUuid& uuid, Wanted wanted) {
  auto pack = std::unique_ptr<Pack>(new Pack);
  pack->path_ = file->path();
  pack->file_ = std::move(file);
  absl::Status status = pack->Load(id, uuid, wanted);
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("pack ", pack->path()));
  }
  return pack;
}

absl::Status Pack::Load(uint64_t id, const StoreUuid& uuid, Wanted wanted) {
  RK_ASSIGN_OR_RETURN(uint64_t size, file_->Size());
  if (size < kPackHeaderBytes + sizeof footer_) return absl::DataLossError("it is too short");
  RK_RETURN_IF_ERROR(file_->ReadAt(0, BytesOf(header_)));
  if (memcmp(header_.magic, kPackMagic, sizeof kPackMagic) != 0 ||
      header_.checksum != Checksum(&header_, offsetof(PackHeader, checksum))) {
    return absl::DataLossError("its header is damaged");
  }
  RK_RETURN_IF_ERROR(file_->ReadAt(size - sizeof footer_, BytesOf(footer_)));
  if (memcmp(footer_.magic, kFooterMagic, sizeof kFooterMagic) != 0 ||
      footer_.checksum != Checksum(&footer_, offsetof(PackFooter, checksum))) {
    return absl::DataLossError("its footer is damaged");
  }
  if (header_.version != kFormatVersion || footer_.version != kFormatVersion ||
      header_.page_size != kPageSize || footer_.section_count != kSectionCount) {
    return absl::FailedPreconditionError("it is of a newer format; use a newer Rekindle");
  }
  if (header_.pack_id != id || footer_.pack_id != id ||
      memcmp(header_.store_uuid, uuid.data(), uuid.size()) != 0) {
    return absl::DataLossError("it belongs to another store or has another pack's name");
  }
  for (const SectionEntry& section : footer_.sections) {
    if (section.bytes > kMaxSectionBytes || section.offset > size || section.bytes > size - section.offset ||
        section.offset < footer_.data_end) {
      return absl::DataLossError("its footer is damaged");
    }
  }
  if (footer_.sections[kFrames].bytes != uint64_t{footer_.frames} * sizeof(FrameEntry)) {
    return absl::DataLossError("its footer is damaged");
  }
  return wanted == Wanted::kAll ? LoadFrameTable() : absl::OkStatus();
}

absl::Status Pack::LoadFrameTable() {
  frame_table_.resize(footer_.frames);
  const SectionEntry& section = footer_.sections[kFrames];
  auto bytes = absl::Span<std::byte>(reinterpret_cast<std::byte*>(frame_table_.data()), section.bytes);
  RK_RETURN_IF_ERROR(file_->ReadAt(section.offset, bytes));
  if (Checksum(bytes.data(), bytes.size()) != section.checksum) {
    return absl::DataLossError("its frame table is damaged");
  }
  // Whoever may write the store can make checksums that fit: what is here is how much others read into
  // buffers that hold the largest frame there can be.
  uint64_t free_from = kPackHeaderBytes;
  for (uint32_t i = 0; i < footer_.frames; ++i) {
    const FrameEntry& f = frame_table_[i];
    const uint32_t end = FirstPageAfter(i);
    bool fits = end > f.first_page && end - f.first_page <= kMaxFramePages && (i > 0 || f.first_page == 0) &&
                f.codec() <= Codec::kRawKeyed && f.offset() >= free_from &&
                f.offset() + f.stored_bytes <= footer_.data_end;
    const uint64_t plain = uint64_t{end - f.first_page} * kPageSize;
    // What does not shrink is not compressed.
    fits = fits && (IsRaw(f.codec()) ? f.stored_bytes == plain
                                     : f.stored_bytes > 0 && f.stored_bytes < plain &&
                                           end - f.first_page <= kMaxZstdFramePages);
    if (!fits) return absl::DataLossError("its frame table is damaged");
    free_from = f.offset() + f.stored_bytes;
  }
  if (footer_.frames == 0 && footer_.pages != 0) return absl::DataLossError("its frame table is damaged");
  return absl::OkStatus();
}

absl::StatusOr<std::string> Pack::ReadSection(const PackFooter& footer, PackSection section,
                                              const BlockFile& file) {
  const SectionEntry& entry = footer.sections[section];
  std::string bytes(entry.bytes, '\0');
  RK_RETURN_IF_ERROR(file.ReadAt(entry.offset, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}));
  if (Checksum(bytes) != entry.checksum) {
    static constexpr const char* kNames[] = {"frame table", "manifest", "image record"};
    return absl::DataLossError(
        absl::StrCat("the ", kNames[section], " in pack ", file.path(), " is damaged"));
  }
  return bytes;
}

}  // namespace rekindle::store
