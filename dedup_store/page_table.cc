#include "dedup_store/page_table.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/frame_loader.h"
#include "dedup_store/locked_file.h"

namespace rekindle::store {

namespace {

constexpr uint32_t kTablePiece = (256 << 10) / sizeof(uint64_t);

std::vector<uint64_t> FingerprintsOf(StoreCore* core, const Pack& pack) {
  std::vector<uint64_t> fingerprints(pack.pages(), 0);
  FrameLoader loader(core->fingerprinter());
  for (uint32_t frame = 0; frame < pack.frames(); ++frame) {
    if (pack.IsDeadFrame(frame)) continue;
    auto pages = loader.Load(pack, frame);
    if (!pages.ok()) {
      if (absl::IsDataLoss(pages.status())) core->damaged_frames().Add({pack.id(), frame});
      continue;
    }
    uint32_t page = pack.frame(frame).first_page;
    for (size_t at = 0; at < pages->size(); at += kPageSize) {
      fingerprints[page++] = core->fingerprinter().OfPage(pages->data() + at);
    }
  }
  return fingerprints;
}

}  // namespace

absl::Status ReadPageTable(StoreCore* core, uint64_t pack_id, uint32_t pages,
                           absl::FunctionRef<void(uint32_t first, absl::Span<const uint64_t>)> take) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                      core->io()->Open(core->page_table_path(pack_id), false));
  RK_ASSIGN_OR_RETURN(uint64_t size, file->Size());
  auto damaged = [&] {
    return absl::DataLossError(absl::StrCat("the page table ", file->path(), " is damaged"));
  };
  PageTableHeader header;
  if (size != sizeof header + uint64_t{pages} * sizeof(uint64_t)) return damaged();
  RK_RETURN_IF_ERROR(file->ReadAt(0, {reinterpret_cast<std::byte*>(&header), sizeof header}));
  if (memcmp(header.magic, kPageTableMagic, sizeof header.magic) != 0 ||
      !(header.checksum == Checksum(&header, offsetof(PageTableHeader, checksum))) ||
      header.version != kFormatVersion || header.pages != pages || header.pack_id != pack_id) {
    return damaged();
  }
  std::vector<uint64_t> piece;
  RunningChecksum checksum;
  for (uint32_t first = 0; first < pages; first += static_cast<uint32_t>(piece.size())) {
    piece.resize(std::min(pages - first, kTablePiece));
    const size_t bytes = piece.size() * sizeof(uint64_t);
    RK_RETURN_IF_ERROR(file->ReadAt(sizeof header + uint64_t{first} * sizeof(uint64_t),
                                    {reinterpret_cast<std::byte*>(piece.data()), bytes}));
    checksum.Update(piece.data(), bytes);
    take(first, piece);
  }
  return checksum.Sum() == header.body_checksum ? absl::OkStatus() : damaged();
}

absl::StatusOr<PageTable> PageTable::LoadFile(StoreCore* core, uint64_t pack_id, uint32_t pages) {
  PageTable table;
  RK_RETURN_IF_ERROR(
      ReadPageTable(core, pack_id, pages, [&table, pages](uint32_t first, absl::Span<const uint64_t> piece) {
        if (first == 0) table.fingerprints_.reserve(pages);
        table.fingerprints_.insert(table.fingerprints_.end(), piece.begin(), piece.end());
      }));
  return table;
}

PageTable PageTable::Load(StoreCore* core, const Pack& pack) {
  auto from_file = LoadFile(core, pack.id(), pack.pages());
  if (from_file.ok()) {
    for (uint32_t frame = 0; frame < pack.frames(); ++frame) {
      if (from_file->fingerprints_[pack.frame(frame).first_page] != 0 || pack.IsDeadFrame(frame)) continue;
      core->damaged_frames().Add({pack.id(), frame});
    }
    return *std::move(from_file);
  }
  PageTable table;
  table.fingerprints_ = FingerprintsOf(core, pack);
  if (!core->read_only()) {
    absl::Status written = WritePageTable(core, pack.id(), table.fingerprints_);
    if (!written.ok()) Log(LogLevel::kWarning, absl::StrCat("not kept: ", written.message()));
  }
  return table;
}

absl::Status WritePageTable(StoreCore* core, uint64_t pack_id, absl::Span<const uint64_t> fingerprints) {
  PageTableHeader header{};
  memcpy(header.magic, kPageTableMagic, sizeof header.magic);
  header.version = kFormatVersion;
  header.pages = static_cast<uint32_t>(fingerprints.size());
  header.pack_id = pack_id;
  header.body_checksum = Checksum(fingerprints.data(), fingerprints.size() * sizeof(uint64_t));
  header.checksum = Checksum(&header, offsetof(PageTableHeader, checksum));
  // Under another name first: another process may be reading the old one.
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, CreateLocked(core->io(), /*direct=*/false, [&] {
                        return absl::StrCat(core->path(), "/tmp/", PageTableFileName(pack_id), ".",
                                            absl::Hex(NewFileId()));
                      }));
  const std::string temporary = file->path();
  auto write = [&]() -> absl::Status {
    RK_RETURN_IF_ERROR(file->WriteAt(0, {reinterpret_cast<const std::byte*>(&header), sizeof header}));
    RK_RETURN_IF_ERROR(file->WriteAt(sizeof header, {reinterpret_cast<const std::byte*>(fingerprints.data()),
                                                     fingerprints.size() * sizeof(uint64_t)}));
    RK_RETURN_IF_ERROR(file->Sync());
    return core->io()->Rename(temporary, core->page_table_path(pack_id));
  };
  absl::Status status = write();
  if (!status.ok()) (void)core->io()->Unlink(temporary);
  return status;
}

void ForgetFrames(StoreCore* core, const Pack& pack, absl::Span<const uint32_t> frames) {
  std::vector<uint32_t> fresh;
  for (uint32_t frame : frames) {
    if (core->damaged_frames().Add({pack.id(), frame})) fresh.push_back(frame);
  }
  if (fresh.empty()) return;
  if (absl::Status kept = KeepForgotten(core, pack, fresh); !kept.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("that pack ", pack.path(), " has damaged frames is not kept: ", kept.message()));
  }
}

namespace {

ABSL_CONST_INIT absl::Mutex forgetting(absl::kConstInit);

absl::Status ForgetInTable(StoreCore* core, const Pack& pack, absl::Span<const uint32_t> frames) {
  absl::MutexLock one_at_a_time(&forgetting);
  auto table = PageTable::LoadFile(core, pack.id(), pack.pages());
  // It is made anew from the pack when it is wanted, without what is damaged.
  if (!table.ok()) return absl::OkStatus();
  const absl::Span<const uint64_t> known = table->fingerprints();
  std::vector<uint64_t> left(known.begin(), known.end());
  for (uint32_t frame : frames) {
    std::fill(left.begin() + pack.frame(frame).first_page, left.begin() + pack.FirstPageAfter(frame), 0);
  }
  return WritePageTable(core, pack.id(), left);
}

}  // namespace

void RememberFrames(StoreCore* core, const Pack& pack, const WholeFrames& whole) {
  const auto write = [&]() -> absl::Status {
    absl::MutexLock one_at_a_time(&forgetting);
    auto table = PageTable::LoadFile(core, pack.id(), pack.pages());
    // Made anew from the pack, when it is wanted.
    if (absl::IsNotFound(table.status()) || absl::IsDataLoss(table.status())) return absl::OkStatus();
    RK_RETURN_IF_ERROR(table.status());
    const absl::Span<const uint64_t> known = table->fingerprints();
    std::vector<uint64_t> all(known.begin(), known.end());
    auto next = whole.fingerprints.begin();
    for (uint32_t frame : whole.frames) {
      const uint32_t first = pack.frame(frame).first_page, pages = pack.FirstPageAfter(frame) - first;
      std::copy_n(next, pages, all.begin() + first);
      next += pages;
    }
    return WritePageTable(core, pack.id(), all);
  };
  if (whole.frames.empty()) return;
  if (absl::Status written = write(); !written.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("that frames of pack ", pack.path(),
                                         " can be read again is not kept: ", written.message()));
    return;
  }
  for (uint32_t frame : whole.frames) core->damaged_frames().Remove({pack.id(), frame});
}

absl::StatusOr<std::vector<bool>> FindForgotten(StoreCore* core, const Pack& pack) {
  std::vector<bool> forgotten(pack.frames(), false);
  if (pack.frames() == 0) return forgotten;
  uint32_t frame = 0;
  const auto look = [&](uint32_t first, absl::Span<const uint64_t> fingerprints) {
    const uint64_t end = first + fingerprints.size();
    for (; frame < pack.frames() && pack.frame(frame).first_page < end; ++frame) {
      forgotten[frame] = fingerprints[pack.frame(frame).first_page - first] == 0;
    }
  };
  if (absl::Status read = ReadPageTable(core, pack.id(), pack.pages(), look); !read.ok()) {
    if (!absl::IsNotFound(read) && !absl::IsDataLoss(read)) return read;
    forgotten.assign(pack.frames(), false);
  }
  for (uint32_t f = 0; f < pack.frames(); ++f) {
    forgotten[f] = !pack.IsDeadFrame(f) && (forgotten[f] || core->damaged_frames().Has({pack.id(), f}));
  }
  return forgotten;
}

absl::Status KeepForgotten(StoreCore* core, const Pack& pack, absl::Span<const uint32_t> frames) {
  if (core->read_only()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(ForgetInTable(core, pack, frames));
  auto covering = [&](Catalog::Txn& txn) -> absl::StatusOr<std::optional<PackRecord>> {
    RK_ASSIGN_OR_RETURN(std::optional<PackRecord> record, txn.FindPack(pack.id()));
    if (record && record->index_id == 0) record.reset();
    return record;
  };
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core->catalog().Read());
    RK_ASSIGN_OR_RETURN(std::optional<PackRecord> covered, covering(txn));
    if (!covered) return absl::OkStatus();
  }
  // An index that covers the pack has these pages still: its own table is asked instead, until the next
  // merge.
  RK_RETURN_IF_ERROR(core->io()->BeforeCatalogCommit("forgetting of damaged frames"));
  return core->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_ASSIGN_OR_RETURN(std::optional<PackRecord> record, covering(txn));
    if (!record) return absl::OkStatus();
    record->index_id = 0;
    return txn.PutPack(*record);
  });
}

}  // namespace rekindle::store
