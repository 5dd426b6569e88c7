// The pages of a PrefillSet as a note beside the image (store::kWorkingSetPagesNote), so that the next pager
// has them by reading one stretch of the disk: in the packs they lie scattered over frames, most of whose
// pages nobody wants yet. docs/store-format.md describes the format. Each chunk has its SHA-256, and so has
// what comes before them; nothing of a chunk is used before it was found right.
//
// Free functions, thread-safe.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

using Sha256Digest = std::array<uint8_t, 32>;

// Where neighbouring pages of a task go.
struct PrefillPlace {
  pid_t pid = 0;
  uint64_t address = 0, number = 0;  // see PrefillSource
  uint64_t pages = 0;
  friend bool operator==(const PrefillPlace& a, const PrefillPlace& b) = default;
};

// What comes before the chunks.
struct PrefillNoteHead {
  static constexpr uint64_t kChunkPages = 128;

  struct Chunk {
    enum class Codec : uint8_t { kRaw, kZstd, kZstdOfPlanes };  // planes: dedup_store/transposition.h
    Codec codec = Codec::kRaw;
    uint32_t stored_bytes = 0;
    Sha256Digest digest{};  // of the stored bytes
    friend bool operator==(const Chunk& a, const Chunk& b) = default;
  };

  Sha256Digest image{};        // digest
  Sha256Digest working_set{};  // of the encoded working set that it was made from
  // In the order of the pages in the chunks, which all but the last have kChunkPages each.
  std::vector<PrefillPlace> recorded, written;
  std::vector<Chunk> chunks;

  uint64_t pages() const;
  friend bool operator==(const PrefillNoteHead& a, const PrefillNoteHead& b) = default;

  std::string Encode() const;
  // DataLoss: the bytes are none. FailedPrecondition: of a newer Rekindle.
  static absl::StatusOr<PrefillNoteHead> Decode(absl::string_view bytes);
};

// Completes `head`, whose chunks are ignored, by those of `pages`, and gives the parts of the note's content:
// the head, then the chunks. `go_on` is asked before each chunk and may wait; false: Cancelled.
absl::StatusOr<std::vector<std::string>> EncodePrefillNote(PrefillNoteHead head,
                                                           absl::Span<const std::byte> pages,
                                                           const std::function<bool()>& go_on);

// Fills `pages`, which has room for exactly those of `wanted` (of which chunks are ignored), by several
// threads. FailedPrecondition: the note is of something else. DataLoss: it is damaged; what `pages` has then
// is not to be used.
absl::Status LoadPrefillNote(const store::NoteReader& note, const PrefillNoteHead& wanted,
                             absl::Span<std::byte> pages);

}  // namespace rekindle::restore
