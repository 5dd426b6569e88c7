// Reads whole frames of packs, decompresses and verifies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dedup_store/hashing.h"
#include "dedup_store/pack.h"

struct ZSTD_DCtx_s;

namespace rekindle::store {

// One thread's buffers. What these return lies in them, or in `stored`, and is good until the next
// call. DataLoss: the frame is damaged.
class FrameLoader {
 public:
  explicit FrameLoader(const Fingerprinter& fingerprinter);
  ~FrameLoader();
  FrameLoader(const FrameLoader&) = delete;
  FrameLoader& operator=(const FrameLoader&) = delete;

  // A frame as it is stored, not verified.
  absl::StatusOr<absl::Span<const std::byte>> Read(const Pack& pack, uint32_t frame);
  // The pages of a frame.
  absl::StatusOr<absl::Span<const std::byte>> Load(const Pack& pack, uint32_t frame);
  // The same from the frame's stored bytes, which were read already.
  absl::StatusOr<absl::Span<const std::byte>> Decode(const Pack& pack, uint32_t frame,
                                                     const std::byte* stored);
  // The same two with the pages put into `out`, which has room for exactly these; `stored` may be `out` where
  // the frame is raw.
  absl::Status LoadTo(const Pack& pack, uint32_t frame, absl::Span<std::byte> out);
  absl::Status DecodeTo(const Pack& pack, uint32_t frame, const std::byte* stored, absl::Span<std::byte> out);

 private:
  absl::Status Decompress(const FrameEntry& entry, const std::byte* stored, absl::Span<std::byte> out);
  absl::Status Verify(const FrameEntry& entry, absl::Span<const std::byte> pages) const;

  const Fingerprinter& fingerprinter_;
  ZSTD_DCtx_s* const zstd_;
  std::unique_ptr<std::byte[]> stored_, plain_, planes_;
};

// Tells whether stored pages have given bytes. One thread's; remembers the last frames that it decompressed.
class PageComparer {
 public:
  explicit PageComparer(const Fingerprinter& fingerprinter);
  // What can't be read is equal to nothing. `*damaged`: the page's frame was found to be damaged.
  bool Equal(const Pack& pack, uint32_t page, const std::byte* bytes, bool* damaged);

 private:
  struct Slot {
    uint64_t pack_id = 0;
    uint32_t frame = 0;
    std::unique_ptr<std::byte[]> pages;
  };
  static constexpr size_t kSlots = 8;
  FrameLoader loader_;
  Slot slots_[kSlots];
  size_t next_slot_ = 0;
  std::unique_ptr<std::byte[]> page_;
};

}  // namespace rekindle::store
