// A sealed pack file, open for reading. While a Pack exists it holds a shared lock on its file, so that gc
// leaves the file's content alone. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/block_io.h"
#include "dedup_store/format.h"
#include "dedup_store/hashing.h"

namespace rekindle::store {

class Pack {
 public:
  // Takes ownership of `file`. Checks header, footer and frame table; DataLoss when one of them is damaged.
  static absl::StatusOr<std::unique_ptr<Pack>> Open(std::unique_ptr<BlockFile> file, uint64_t id,
                                                    const StoreUuid& uuid);

  uint64_t id() const { return footer_.pack_id; }
  const std::string& path() const { return file_->path(); }
  const BlockFile& file() const { return *file_; }
  BlockFile& mutable_file() { return *file_; }
  const PackFooter& footer() const { return footer_; }
  const PackHeader& header() const { return header_; }
  uint32_t pages() const { return footer_.pages; }
  uint32_t frames() const { return footer_.frames; }

  const FrameEntry& frame(uint32_t index) const { return frame_table_[index]; }
  uint32_t FirstPageAfter(uint32_t frame) const {
    return frame + 1 < footer_.frames ? frame_table_[frame + 1].first_page : footer_.pages;
  }
  // Requires page < pages().
  uint32_t FrameOfPage(uint32_t page) const;

  // Read into memory at first use. Not checked as a whole: a damaged fingerprint fails its own page alone.
  absl::StatusOr<absl::Span<const Hash128>> Fingerprints() const;
  // Mapped at first use.
  absl::StatusOr<absl::Span<const Hash128>> Digests() const;
  // Pages that have this digest, by the pack's digest table; calls `found(page)` until it returns true.
  template <typename F>
  absl::StatusOr<bool> FindDigest(const Hash128& digest, F found) const;

  // A whole section, with its checksum verified.
  absl::StatusOr<std::string> ReadSection(PackSection section) const;

  // Set once after opening: frames that must not be referred to by new images (gc took them).
  void set_dead(std::vector<bool> dead) { dead_ = std::move(dead); }
  bool IsDeadFrame(uint32_t frame) const { return frame < dead_.size() && dead_[frame]; }
  const std::vector<bool>& dead() const { return dead_; }

 private:
  Pack() = default;
  absl::Status Load(uint64_t id, const StoreUuid& uuid);
  absl::Status LoadFrameTable();
  absl::Status MapDigests() const;

  std::unique_ptr<BlockFile> file_;
  PackHeader header_{};
  PackFooter footer_{};
  std::vector<FrameEntry> frame_table_;
  std::vector<bool> dead_;

  mutable absl::once_flag fingerprints_once_;
  mutable absl::Status fingerprints_status_;
  mutable std::vector<Hash128> fingerprints_;

  mutable absl::once_flag digests_once_;
  mutable absl::Status digests_status_;
  mutable std::unique_ptr<FileMapping> digest_mapping_;
  mutable absl::Span<const Hash128> digests_;
  mutable absl::Span<const uint32_t> digest_table_;
};

template <typename F>
absl::StatusOr<bool> Pack::FindDigest(const Hash128& digest, F found) const {
  absl::call_once(digests_once_, [this] { digests_status_ = MapDigests(); });
  if (!digests_status_.ok()) return digests_status_;
  const DigestTableShape shape(pages());
  uint64_t slot = shape.SlotOf(digest);
  // A damaged table has perhaps no empty slot: never more steps than slots.
  for (uint64_t step = 0; step < digest_table_.size(); ++step) {
    uint32_t value = digest_table_[slot];
    if (value == 0) return false;
    uint32_t page = (value & shape.PageMask()) - 1;
    if (shape.Value(digest, page) == value && page < pages() && digests_[page] == digest && found(page))
      return true;
    if (++slot == digest_table_.size()) slot = 0;
  }
  return false;
}

}  // namespace rekindle::store
