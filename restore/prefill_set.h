// What is put into every copy of an image before it runs, ready to be copied: the bytes of its recorded
// working set, and of the private file pages that are written, in one piece of memory and by ascending
// address. Frames hold mostly pages that nobody wants yet, and each piece would have to be looked up in its
// own. Immutable; shared by all copies.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/store.h"
#include "restore/frame_cache.h"
#include "restore/prefill_note.h"

namespace rekindle::restore {

// Where pages of one frame go.
struct PrefillSource {
  store::FrameId frame;  // default-made: zeros
  uint32_t page_in_frame = 0;
  uint32_t pages = 0;
  pid_t pid = 0;
  // Ascending within a task. Of two sources that follow each other in both, the pages are put in at once.
  uint64_t address = 0;
  uint64_t number = 0;  // of the first page, see TaskPages; 0 for what is written
};

class PrefillSet {
 public:
  // Neighbouring pages of one task.
  struct Piece : PrefillPlace {
    const std::byte* bytes = nullptr;
  };

  // Bytes of memory that a set of these takes.
  static uint64_t BytesOf(absl::Span<const PrefillSource> working_set,
                          absl::Span<const PrefillSource> written);
  // Loads them through `cache`. The order of the sources does not matter.
  static absl::StatusOr<std::shared_ptr<const PrefillSet>> Make(const store::ImageReader& image,
                                                                FrameCache& cache,
                                                                std::vector<PrefillSource> working_set,
                                                                std::vector<PrefillSource> written);
  // The same from what Keep gave before, without a frame being read. `image` and `working_set`: digests.
  // FailedPrecondition: that was of something else. DataLoss: it is damaged.
  static absl::StatusOr<std::shared_ptr<const PrefillSet>> Load(const store::NoteReader& note,
                                                                const Sha256Digest& image,
                                                                const Sha256Digest& working_set_digest,
                                                                std::vector<PrefillSource> working_set,
                                                                std::vector<PrefillSource> written);
  // The parts of a note for Load: see EncodePrefillNote.
  absl::StatusOr<std::vector<std::string>> Keep(const Sha256Digest& image,
                                                const Sha256Digest& working_set_digest,
                                                const std::function<bool()>& go_on) const;
  ~PrefillSet();
  PrefillSet(const PrefillSet&) = delete;
  PrefillSet& operator=(const PrefillSet&) = delete;

  const std::vector<Piece>& working_set() const { return working_set_; }
  // The pages of the working set from page `number` of the task on; `pages` is 0 where it is not in it.
  struct Found {
    uint64_t pages = 0;
    const std::byte* bytes = nullptr;
  };
  Found Find(pid_t pid, uint64_t number) const;
  const std::vector<Piece>& written() const { return written_; }
  uint64_t bytes() const { return bytes_; }

 private:
  PrefillSet(std::byte* memory, uint64_t bytes, uint64_t used)
      : memory_(memory), bytes_(bytes), used_(used) {}
  static absl::StatusOr<std::shared_ptr<PrefillSet>> Allocate(uint64_t bytes);
  PrefillNoteHead Head(const Sha256Digest& image, const Sha256Digest& working_set_digest) const;

  std::byte* const memory_;
  const uint64_t bytes_;
  const uint64_t used_;  // of these, by pages
  std::vector<Piece> working_set_, written_;
};

}  // namespace rekindle::restore
