// Looks for silent damage: reads every stored byte again, a little at a time, and holds it against its
// digest. It reads what the disk has and not what the page cache has, which it neither fills nor empties.
//
// A bit that has flipped costs the images that have it. Found early it costs no other: its frame is
// forgotten, and the next images store these pages afresh instead of being built upon it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dedup_store/store.h"

namespace rekindle::store {

// A part of a pack that is not as it was written.
struct ScrubDamage {
  enum class Part {
    kChunk,     // a frame of pages
    kManifest,  // of the image that the pack was written for
    kRecord,    // the copy of that image's catalog record: no image is lost
    kPack,      // header, footer, frame table or length: nothing in the pack can be used
  };
  Part part = Part::kChunk;
  uint64_t pack = 0;
  uint64_t offset = 0;                            // in the pack's file
  uint32_t frame = 0, first_page = 0, pages = 0;  // of a chunk
  int64_t found_unix_ns = 0;
  std::string why;  // "the data does not fit its digest"
};

// Kept in the store's file SCRUB.
struct ScrubState {
  int64_t pass_began_unix_ns = 0;  // 0: no pass is under way
  uint64_t pass_bytes = 0;         // read in it so far
  // All packs with smaller IDs were read in it, and of this one the frames before `frame`.
  uint64_t pack = 0;
  uint32_t frame = 0;
  // Of the last full pass; 0: there was none.
  int64_t last_began_unix_ns = 0, last_ended_unix_ns = 0;
  uint64_t last_bytes = 0;
  std::vector<ScrubDamage> damage;  // that was found and is still there; the first kMostDamageKept of it

  std::string Encode() const;
  // DataLoss: it is not byte for byte what Encode gives; FailedPrecondition: a newer version has written it.
  static absl::StatusOr<ScrubState> Decode(absl::string_view text);
};
inline constexpr size_t kMostDamageKept = 1000;

struct ScrubStep {
  uint64_t bytes = 0;              // read from the disk
  bool pass_ended = false;         // with this step
  bool busy = false;               // gc is at work on the pack: nothing was read, try again in a while
  std::vector<ScrubDamage> found;  // that was not known
  std::vector<std::string> catalog_problems;  // sentences
  absl::Status catalog_mended;                // whether both copies are whole again
};

// What a reader of the store's state learns.
struct ScrubStatus {
  ScrubState state;              // without damage that is gone
  uint64_t pass_bytes_left = 0;  // of the pass that is under way
  // Which have something of it, by reference and sorted by it; these can't be restored whole.
  std::vector<std::string> damaged_images;
};

// One scrub of a store; it goes on where the last one ended. Not thread-safe; keeps its store open.
class Scrub {
 public:
  virtual ~Scrub() = default;  // keeps where it was
  // Reads and verifies the next piece, about a mebibyte, and begins a pass when none is under way. Reads with
  // the lowest priority that there is, for the processor and the disk. Damage is noted and forgotten by the
  // index when this returns. An error tells nothing of the data; the next calls try the same again, a few
  // times: then the place counts as damage until a later pass can read it, and the pass goes on.
  virtual absl::StatusOr<ScrubStep> Next() = 0;
  virtual const ScrubState& state() const = 0;
  // Stored bytes that a pass has still to read.
  virtual absl::StatusOr<uint64_t> BytesLeft() const = 0;
  // References of the images that have something of it. Reads the manifests that this process does not know
  // yet.
  virtual absl::StatusOr<std::vector<std::string>> ImagesWith(absl::Span<const ScrubDamage> damage) const = 0;
};

// Unavailable: another process scrubs this store. PermissionDenied: the store can't be written.
// FailedPrecondition: a newer version has scrubbed it, whose state would be lost.
absl::StatusOr<std::unique_ptr<Scrub>> NewScrub(Store& store);
// What is known, whoever scrubs. Where there is damage, reads the manifests that this process does not know
// yet.
absl::StatusOr<ScrubStatus> ReadScrubStatus(const Store& store);
// ScrubStatus::damaged_images alone, for who asks often: a small file is read where there is no damage.
absl::StatusOr<std::vector<std::string>> ReadDamagedImages(const Store& store);

// How fast to read, in bytes a second, for all to be read in time: never so slowly that a small store takes
// days, and never as fast as most disks can.
uint64_t ScrubRate(uint64_t bytes_left, absl::Duration time_left);
// How long to rest after a step that took `took`.
absl::Duration ScrubPause(uint64_t bytes, absl::Duration took, uint64_t bytes_per_second);
// Until a pass may go on or begin, one in each `period`; zero: now.
absl::Duration UntilScrub(const ScrubState& state, absl::Duration period, absl::Time now);
// What the pass that is under way, or begins, has left of its time.
absl::Duration ScrubTimeLeft(const ScrubState& state, absl::Duration period, absl::Time now);

}  // namespace rekindle::store
