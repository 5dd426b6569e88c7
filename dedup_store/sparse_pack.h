// For tests and benchmarks of the index: packs with true frame tables and page tables, and holes for data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dedup_store/page_table.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

inline void MustBeOk(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "%s\n", status.ToString().c_str());
  exit(1);
}

// splitmix64: page `i`'s fingerprint, so that none has to be remembered.
inline uint64_t SparseFingerprint(uint64_t i) {
  uint64_t z = (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A pack of raw frames, without their data, which is in the catalog afterwards.
inline PackRecord MakeSparsePack(StoreCore& core, uint64_t first, uint32_t pages) {
  PackRecord record;
  record.id = NewFileId();
  record.pages = pages;
  std::vector<FrameEntry> frames;
  std::vector<uint64_t> fingerprints(pages);
  for (uint32_t page = 0; page < pages; ++page) {
    fingerprints[page] = SparseFingerprint(first + page);
    if (page % kMaxFramePages != 0) continue;
    uint32_t n = std::min(kMaxFramePages, pages - page);
    frames.push_back({kPackHeaderBytes + uint64_t{page} * kPageSize,
                      n * static_cast<uint32_t>(kPageSize),
                      page,
                      SparseFingerprint(~page),
                      {}});
  }
  record.frames = static_cast<uint32_t>(frames.size());
  record.stored_bytes = uint64_t{pages} * kPageSize;

  PackHeader header{};
  memcpy(header.magic, kPackMagic, sizeof header.magic);
  header.version = kFormatVersion;
  header.page_size = kPageSize;
  memcpy(header.store_uuid, core.identity().uuid.data(), sizeof header.store_uuid);
  header.pack_id = record.id;
  header.checksum = Checksum(&header, offsetof(PackHeader, checksum));
  PackFooter footer{};
  memcpy(footer.magic, kFooterMagic, sizeof footer.magic);
  footer.version = kFormatVersion;
  footer.section_count = kSectionCount;
  footer.pack_id = record.id;
  footer.frames = record.frames;
  footer.pages = pages;
  footer.data_end = kPackHeaderBytes + record.stored_bytes;
  footer.stored_bytes = record.stored_bytes;
  const uint64_t frame_bytes = frames.size() * sizeof(FrameEntry);
  footer.sections[kFrames] = {footer.data_end, frame_bytes, Checksum(frames.data(), frame_bytes)};
  footer.sections[kManifest] =
      footer.sections[kImageRecord] = {footer.data_end + frame_bytes, 0, Checksum("")};
  footer.checksum = Checksum(&footer, offsetof(PackFooter, checksum));
  record.file_bytes = (footer.data_end + frame_bytes + sizeof footer + 4095) / 4096 * 4096;

  auto file = core.io()->CreateBuffered(core.pack_path(record.id));
  MustBeOk(file.status());
  auto write = [&](uint64_t at, const void* data, size_t n) {
    MustBeOk((*file)->WriteAt(at, {static_cast<const std::byte*>(data), n}));
  };
  write(0, &header, sizeof header);
  write(footer.data_end, frames.data(), frame_bytes);
  write(record.file_bytes - sizeof footer, &footer, sizeof footer);
  MustBeOk(WritePageTable(&core, record.id, fingerprints));
  MustBeOk(core.catalog().Update([&](Catalog::Txn& txn) { return txn.PutPack(record); }));
  return record;
}

}  // namespace rekindle::store
