// A sealed pack file, open for reading. While a Pack exists it holds a shared lock on its file, so that gc
// leaves the file's content alone. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/block_io.h"
#include "dedup_store/format.h"
#include "dedup_store/hashing.h"

namespace rekindle::store {

// Whether an error in reading a pack tells that its file is missing, damaged or of a newer format. Any other
// one may be gone the next time.
inline bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
}

class Pack {
 public:
  // Takes ownership of `file`. Checks header, footer and frame table; DataLoss when one of them is damaged.
  static absl::StatusOr<std::unique_ptr<Pack>> Open(std::unique_ptr<BlockFile> file, uint64_t id,
                                                    const StoreUuid& uuid);

  // The same without the frame table, which may be most of what there is to read: the pack's frames can't be
  // asked for then.
  static absl::StatusOr<std::unique_ptr<Pack>> OpenForSections(std::unique_ptr<BlockFile> file, uint64_t id,
                                                               const StoreUuid& uuid);

  uint64_t id() const { return footer_.pack_id; }
  const std::string& path() const { return path_; }
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
  // Both require page < pages().
  uint32_t FrameOfPage(uint32_t page) const { return store::FrameOfPage(frame_table_, page); }
  PageIdentity IdentityOf(uint32_t page) const { return IdentityOfPage(frame_table_, page); }

  // A whole section, with its checksum verified; from a pack's file that was opened anew, or from our own.
  static absl::StatusOr<std::string> ReadSection(const PackFooter& footer, PackSection section,
                                                 const BlockFile& file);
  absl::StatusOr<std::string> ReadSection(PackSection section) const {
    return ReadSection(footer_, section, *file_);
  }

  // Lets go of the file and of its lock. What opening has read can still be asked for, nothing else.
  void Close() { file_.reset(); }

  // Set once after opening: frames that must not be referred to by new images (gc took them).
  void set_dead(std::vector<bool> dead) { dead_ = std::move(dead); }
  bool IsDeadFrame(uint32_t frame) const { return frame < dead_.size() && dead_[frame]; }
  const std::vector<bool>& dead() const { return dead_; }

 private:
  Pack() = default;
  enum class Wanted { kAll, kSections };
  static absl::StatusOr<std::unique_ptr<Pack>> Open(std::unique_ptr<BlockFile> file, uint64_t id,
                                                    const StoreUuid& uuid, Wanted wanted);
  absl::Status Load(uint64_t id, const StoreUuid& uuid, Wanted wanted);
  absl::Status LoadFrameTable();

  std::unique_ptr<BlockFile> file_;
  std::string path_;
  PackHeader header_{};
  PackFooter footer_{};
  std::vector<FrameEntry> frame_table_;
  std::vector<bool> dead_;
};

}  // namespace rekindle::store
