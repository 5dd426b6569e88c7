// The fingerprints of one pack's pages, by page number. They tell what is equal to a parent's page and where
// to look for equal content; no image needs them to be read. Kept in `index/ID.pages`, made anew from the
// pack when that file is lost or damaged.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

class PageTable {
 public:
  // The pack's table. Where its file can't be used, the pack is read and the file written again (if the store
  // may be written). Pages of dead or damaged frames then have fingerprint 0, and so have those of frames
  // that were forgotten; `core` learns which these are.
  static PageTable Load(StoreCore* core, const Pack& pack);
  // Only from its file: DataLoss when that is damaged, NotFound when there is none.
  static absl::StatusOr<PageTable> LoadFile(StoreCore* core, uint64_t pack_id, uint32_t pages);

  absl::Span<const uint64_t> fingerprints() const { return fingerprints_; }

 private:
  std::vector<uint64_t> fingerprints_;
};

// Goes through the table of a pack, as its file has it, a piece at a time: `take` gets the number of a page,
// and the fingerprints of those from there on. Errors as PageTable::LoadFile; that the file is damaged may
// show only at its end.
absl::Status ReadPageTable(StoreCore* core, uint64_t pack_id, uint32_t pages,
                           absl::FunctionRef<void(uint32_t first, absl::Span<const uint64_t>)> take);

// Writes the file of a new pack, or replaces it. A power failure may take the file, never leave a damaged
// one.
absl::Status WritePageTable(StoreCore* core, uint64_t pack_id, absl::Span<const uint64_t> fingerprints);

// These frames of the pack are damaged: from now on new images store their pages afresh. Other processes
// learn of it, too, unless the store can't be written.
void ForgetFrames(StoreCore* core, const Pack& pack, absl::Span<const uint32_t> frames);
// The second half of that, for frames which core->damaged_frames() has already.
absl::Status KeepForgotten(StoreCore* core, const Pack& pack, absl::Span<const uint32_t> frames);

// Frames of a pack that were read and are whole, with the fingerprints of their pages one behind the other.
struct WholeFrames {
  std::vector<uint32_t> frames;
  std::vector<uint64_t> fingerprints;
};
// Undoes ForgetFrames: what a disk did not give for a while is there again.
void RememberFrames(StoreCore* core, const Pack& pack, const WholeFrames& whole);
// The frames of the pack that were forgotten by whomever and are not dead. An error tells nothing of the
// table; of one that is missing or damaged, which is made anew when it is wanted, only what this process
// forgot counts.
absl::StatusOr<std::vector<bool>> FindForgotten(StoreCore* core, const Pack& pack);

}  // namespace rekindle::store
