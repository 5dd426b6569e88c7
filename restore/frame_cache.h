// Decoded frames of images in memory, shared by all restores of this process: what many copies need is read
// and decompressed once. Bounded; what it keeps is decided by cache_policy.h, and where it lies by
// slab_pool.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "dedup_store/store.h"
#include "restore/cache_policy.h"
#include "restore/slab_pool.h"

namespace rekindle::restore {

struct FrameCacheOptions {
  uint64_t budget_bytes = 0;  // rounded down to slabs; 0 keeps nothing that nobody uses
  bool shared = false;        // so that other processes can map the frames: see FrameCache::file
  uint64_t most_bytes = 0;    // that the budget can become later: addresses are reserved for it
};

struct FrameCacheStats {
  uint64_t hits = 0;    // was there, or was being loaded by somebody else
  uint64_t misses = 0;  // was loaded
  uint64_t hit_bytes = 0, miss_bytes = 0;
  uint64_t evictions = 0;
  uint64_t refusals = 0;  // misses for which there was no room: they were loaded into memory of their own
  uint64_t warmed = 0;    // frames that Warm loaded; no misses
  uint64_t frames = 0, bytes = 0;                // held now
  uint64_t pinned_frames = 0, pinned_bytes = 0;  // of these, in use
  uint64_t private_bytes = 0;                    // in use outside of the budget
  uint64_t memory_bytes = 0;  // what is taken of the budget, unused parts of slabs included
  uint64_t budget_bytes = 0;
};

// Thread-safe. Must outlive its pins.
class FrameCache {
 private:
  struct Entry;

 public:
  // A frame's pages, which stay where they are for as long as this exists. Movable; empty when default-made,
  // moved from or released.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept = default;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { Release(); }

    explicit operator bool() const { return entry_ != nullptr; }
    absl::Span<const std::byte> bytes() const;
    bool cached() const;  // false: in memory of its own, which goes with the last pin
    void Release();

   private:
    friend class FrameCache;
    Pin(FrameCache* cache, std::shared_ptr<Entry> entry) : cache_(cache), entry_(std::move(entry)) {}
    FrameCache* cache_ = nullptr;
    std::shared_ptr<Entry> entry_;
  };

  // Puts a frame's verified pages into `out`.
  using Loader = std::function<absl::Status(store::FrameId frame, absl::Span<std::byte> out)>;
  // Loads many, as store::ImageReader::LoadFrames does.
  using BulkLoader = std::function<absl::Status(absl::Span<const store::FrameId> frames,
                                                const store::ImageReader::FrameTarget& where,
                                                const store::ImageReader::FrameLoaded& loaded)>;
  using PagesOf = std::function<uint32_t(store::FrameId frame)>;
  // Gets a frame, pinned, and may keep the pin. Called from several threads at once; must not ask the cache
  // for frames, which others may be loading who wait for this one's.
  using FrameReady = std::function<absl::Status(size_t index, Pin pin)>;

  static absl::StatusOr<std::unique_ptr<FrameCache>> Make(const FrameCacheOptions& options);
  ~FrameCache();
  FrameCache(const FrameCache&) = delete;
  FrameCache& operator=(const FrameCache&) = delete;

  // Empty when the frame is not there.
  Pin Get(store::FrameId frame);

  // Of several that want one frame at once, one loads it and the others wait; when that fails, so do they,
  // with the same error. Where there is no room, the frame is loaded into memory of its own.
  absl::StatusOr<Pin> GetOrLoad(store::FrameId frame, uint32_t pages, const Loader& loader);
  absl::StatusOr<Pin> GetOrLoad(const store::ImageReader& image, store::FrameId frame);

  // Gives each of `frames` to `ready`: those that are there at once, in the order of `frames` and from the
  // calling thread; then the others as they are loaded, in the order of the disk. The first error ends it and
  // is returned. Memory beyond the budget is only taken for what `ready` keeps, and for a few frames at a
  // time.
  absl::Status GetAll(absl::Span<const store::FrameId> frames, const PagesOf& pages_of,
                      const BulkLoader& loader, const FrameReady& ready);
  absl::Status GetAll(const store::ImageReader& image, absl::Span<const store::FrameId> frames,
                      const FrameReady& ready);

  // Rounded down to slabs, and no more than was reserved. Where it gets smaller, what is worth least goes;
  // what is in use stays until its memory is wanted for something else.
  absl::Status SetBudget(uint64_t budget_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  FrameCacheStats Stats() const;
  // Of the memory that is taken, in huge pages. Asks the kernel, which takes a while for a large cache.
  uint64_t HugeBytes() const;

  // What a process that starts anew should load again: the frames that were used more than once, most
  // valuable first.
  std::vector<store::FrameId> HotList(size_t max_frames) const;
  // Loads what `image` has of such a list, from its front, as long as there is free room and not more than
  // `most_bytes` are taken. On this thread, one frame at a time, and nobody who wants one of them waits for
  // it longer than a copy lasts: this may run at a low priority. Frames that can't be loaded are left out.
  // `go_on` is asked before each. Returns how many were loaded.
  uint64_t Warm(const store::ImageReader& image, absl::Span<const store::FrameId> list, uint64_t most_bytes,
                const std::function<bool()>& go_on);
  uint64_t Warm(absl::Span<const store::FrameId> list, const PagesOf& pages_of, const Loader& loader,
                uint64_t most_bytes, const std::function<bool()>& go_on) ABSL_LOCKS_EXCLUDED(mutex_);

  // What it holds, in no order.
  std::vector<store::FrameId> Frames() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Those of `frames` that are there and not in use go, and the memory that this leaves free goes back.
  void Discard(absl::Span<const store::FrameId> frames) ABSL_LOCKS_EXCLUDED(mutex_);

  // Of a shared cache: the memory that frames lie in, to be mapped read-only by others (-1 where it is not
  // shared), and where in it a pin that is cached() has its pages.
  int file() const;
  uint64_t OffsetOf(const Pin& pin) const;

 private:
  enum class State { kLoading, kReady, kFailed, kGivenUp };
  // How far to go for room: what is free; or what others can give up, and then memory outside of the budget.
  enum class Room { kFree, kAny };
  using EntryPtr = std::shared_ptr<Entry>;

  explicit FrameCache(std::unique_ptr<SlabPool> pool);
  Pin PinLocked(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unpin(const EntryPtr& entry) ABSL_LOCKS_EXCLUDED(mutex_);
  Pin HitLocked(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An entry in state kLoading, for the caller alone to fill; empty where there is no room.
  Pin Place(store::FrameId frame, uint32_t pages, Room room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoomForWarming(uint32_t pages, uint64_t most_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<SlabPool::Slot> FindSlot(store::FrameId frame, uint32_t pages, Room room)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Compact() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the state kLoading. kGivenUp: whoever waits is to load it himself.
  void Settle(const Pin& pin, State state, const absl::Status& error) ABSL_LOCKS_EXCLUDED(mutex_);
  // Loads those of `frames` that are not there; gives the positions of those that somebody else has loaded or
  // is loading.
  absl::StatusOr<std::vector<size_t>> LoadMissing(absl::Span<const store::FrameId> frames,
                                                  const PagesOf& pages_of, const BulkLoader& loader,
                                                  const FrameReady& ready) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<SlabPool> pool_storage_;
  mutable absl::Mutex mutex_;
  SlabPool& pool_ ABSL_GUARDED_BY(mutex_);
  CachePolicy policy_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<store::FrameId, EntryPtr> entries_ ABSL_GUARDED_BY(mutex_);
  FrameCacheStats stats_ ABSL_GUARDED_BY(mutex_);  // without what follows from the others
};

// A list of frames as bytes, and back; DataLoss when they are none.
std::string EncodeFrameList(absl::Span<const store::FrameId> frames);
absl::StatusOr<std::vector<store::FrameId>> DecodeFrameList(absl::string_view bytes);

}  // namespace rekindle::restore
