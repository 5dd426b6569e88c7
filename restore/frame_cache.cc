#include "restore/frame_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dedup_store/coding.h"

namespace rekindle::restore {

namespace {

using store::FrameId;
using store::kPageSize;

// What one frame may push out before it is refused: room comes in whole slabs when sizes change, and one
// small frame must not cost the cache everything.
constexpr uint64_t kMostEvictedForOne = 8 * SlabPool::kSlabBytes;
// So many go, for a smaller budget or as they are discarded, before others get their turn.
constexpr int kEvictionsAtOnce = 256;

absl::Status CheckPages(FrameId frame, uint32_t pages) {
  if (pages >= 1 && pages <= store::kMaxPagesOfFrame) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("chunk ", frame.frame, " of pack ",
                                                 absl::Hex(frame.pack, absl::kZeroPad16),
                                                 " can't be loaded: the image uses nothing of it"));
}

}  // namespace

// What is not said to be guarded does not change once others see the entry, but for `data`, `state` and
// `error`: they are written under the mutex, while nobody but the writer has it pinned or is past waiting.
struct FrameCache::Entry {
  FrameId frame;
  uint32_t pages = 0;
  std::byte* data = nullptr;
  State state = State::kLoading;
  absl::Status error;
  uint32_t pins = 0;
  std::optional<SlabPool::Slot> slot;
  std::unique_ptr<std::byte[]> own;  // where there is no slot

  size_t bytes() const { return size_t{pages} * kPageSize; }
};

FrameCache::Pin& FrameCache::Pin::operator=(Pin&& other) noexcept {
  if (this == &other) return *this;
  Release();
  cache_ = other.cache_;
  entry_ = std::move(other.entry_);
  return *this;
}

absl::Span<const std::byte> FrameCache::Pin::bytes() const {
  if (entry_ == nullptr) return {};
  return {entry_->data, entry_->bytes()};
}

bool FrameCache::Pin::cached() const { return entry_ != nullptr && entry_->own == nullptr; }

void FrameCache::Pin::Release() {
  if (entry_ != nullptr) cache_->Unpin(std::exchange(entry_, nullptr));
}

absl::StatusOr<std::unique_ptr<FrameCache>> FrameCache::Make(const FrameCacheOptions& options) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<SlabPool> pool,
                      SlabPool::Make(options.budget_bytes, options.shared, options.most_bytes));
  return std::unique_ptr<FrameCache>(new FrameCache(std::move(pool)));
}

FrameCache::FrameCache(std::unique_ptr<SlabPool> pool)
    : pool_storage_(std::move(pool)), pool_(*pool_storage_), policy_(pool_storage_->budget_bytes()) {}

FrameCache::~FrameCache() = default;

FrameCache::Pin FrameCache::PinLocked(const EntryPtr& entry) {
  if (entry->pins++ == 0) {
    ++stats_.pinned_frames;
    stats_.pinned_bytes += entry->bytes();
  }
  return Pin(this, entry);
}

void FrameCache::Unpin(const EntryPtr& entry) {
  absl::MutexLock lock(&mutex_);
  if (--entry->pins > 0) return;
  --stats_.pinned_frames;
  stats_.pinned_bytes -= entry->bytes();
  if (entry->own != nullptr && entry->state == State::kReady) Drop(entry);
}

void FrameCache::Drop(const EntryPtr& entry) {
  if (entry->slot) {
    policy_.Remove(entry->frame);
    pool_.Free(*entry->slot);
    entry->slot.reset();
    stats_.bytes -= entry->bytes();
  } else {
    stats_.private_bytes -= entry->bytes();
  }
  entries_.erase(entry->frame);
}

FrameCache::Pin FrameCache::HitLocked(const EntryPtr& entry) {
  ++stats_.hits;
  stats_.hit_bytes += entry->bytes();
  if (entry->slot) policy_.Touch(entry->frame);
  return PinLocked(entry);
}

FrameCache::Pin FrameCache::Get(FrameId frame) {
  absl::MutexLock lock(&mutex_);
  auto found = entries_.find(frame);
  if (found == entries_.end() || found->second->state != State::kReady) return {};
  return HitLocked(found->second);
}

absl::StatusOr<FrameCache::Pin> FrameCache::GetOrLoad(FrameId frame, uint32_t pages, const Loader& loader) {
  RK_RETURN_IF_ERROR(CheckPages(frame, pages));
  for (;;) {
    Pin pin;
    bool mine = false;
    {
      absl::MutexLock lock(&mutex_);
      auto found = entries_.find(frame);
      if (found != entries_.end()) {
        const EntryPtr entry = found->second;
        pin = HitLocked(entry);
        auto settled = [&entry] { return entry->state != State::kLoading; };
        mutex_.Await(absl::Condition(&settled));
      } else {
        pin = Place(frame, pages, Room::kAny);
        mine = true;
      }
    }
    Entry& entry = *pin.entry_;
    if (mine) {
      absl::Status status = loader(frame, {entry.data, entry.bytes()});
      Settle(pin, status.ok() ? State::kReady : State::kFailed, status);
    }
    if (entry.state == State::kReady) return pin;
    if (entry.state == State::kFailed) return entry.error;
  }
}

absl::StatusOr<FrameCache::Pin> FrameCache::GetOrLoad(const store::ImageReader& image, FrameId frame) {
  return GetOrLoad(frame, image.FramePages(frame),
                   [&image](FrameId id, absl::Span<std::byte> out) { return image.LoadFrame(id, out); });
}

FrameCache::Pin FrameCache::Place(FrameId frame, uint32_t pages, Room room) {
  auto entry = std::make_shared<Entry>();
  entry->frame = frame;
  entry->pages = pages;
  entry->slot = FindSlot(frame, pages, room);
  if (entry->slot) {
    entry->data = pool_.Memory(*entry->slot).data();
    stats_.bytes += entry->bytes();
    policy_.Insert(frame, SlabPool::SlotBytes(pages), /*proven=*/room == Room::kFree);
  } else {
    if (room == Room::kFree) return {};
    ++stats_.refusals;
    stats_.private_bytes += entry->bytes();
    entry->own.reset(new std::byte[entry->bytes()]);
    entry->data = entry->own.get();
  }
  if (room == Room::kFree) {
    ++stats_.warmed;
  } else {
    ++stats_.misses;
    stats_.miss_bytes += entry->bytes();
  }
  entries_[frame] = entry;
  return PinLocked(entry);
}

std::optional<SlabPool::Slot> FrameCache::FindSlot(FrameId frame, uint32_t pages, Room room) {
  std::optional<SlabPool::Slot> slot = pool_.Allocate(pages, frame);
  if (room == Room::kFree) return slot;
  auto may_go = [this](const FrameId& id)
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return entries_.at(id)->pins == 0; };
  for (uint64_t evicted = 0; !slot && evicted < kMostEvictedForOne;) {
    std::optional<FrameId> victim = policy_.Evict(may_go);
    if (!victim) break;
    const EntryPtr entry = entries_.at(*victim);
    evicted += entry->bytes();
    ++stats_.evictions;
    Drop(entry);
    slot = pool_.Allocate(pages, frame);
    if (slot) break;
    Compact();
    slot = pool_.Allocate(pages, frame);
  }
  return slot;
}

void FrameCache::Compact() {
  const std::optional<uint32_t> slab = pool_.SlabToEmpty();
  if (!slab) return;
  const auto slots = pool_.SlotsOf(*slab);
  for (const auto& [slot, frame] : slots) {
    if (entries_.at(frame)->pins > 0) return;
  }
  for (const auto& [slot, frame] : slots) {
    Entry& entry = *entries_.at(frame);
    const std::optional<SlabPool::Slot> to = pool_.AllocateBeside(*slab, frame);
    if (!to) return;
    std::byte* data = pool_.Memory(*to).data();
    memcpy(data, entry.data, entry.bytes());
    pool_.Free(slot);
    entry.slot = to;
    entry.data = data;
  }
}

void FrameCache::Settle(const Pin& pin, State state, const absl::Status& error) {
  absl::MutexLock lock(&mutex_);
  const EntryPtr& entry = pin.entry_;
  entry->state = state;
  entry->error = error;
  // Those who wait for it have it pinned, and learn what became of it; the next one tries again.
  if (state != State::kReady) Drop(entry);
}

absl::StatusOr<std::vector<size_t>> FrameCache::LoadMissing(absl::Span<const FrameId> frames,
                                                            const PagesOf& pages_of, const BulkLoader& loader,
                                                            const FrameReady& ready) {
  std::vector<Pin> placed(frames.size());
  absl::Mutex others_mutex;
  std::vector<size_t> others;
  auto where = [&](size_t i) -> absl::Span<std::byte> {
    {
      absl::MutexLock lock(&mutex_);
      if (!entries_.contains(frames[i])) {
        placed[i] = Place(frames[i], pages_of(frames[i]), Room::kAny);
        return {placed[i].entry_->data, placed[i].entry_->bytes()};
      }
    }
    absl::MutexLock lock(&others_mutex);
    others.push_back(i);
    return {};
  };
  auto loaded = [&](size_t i) {
    Settle(placed[i], State::kReady, absl::OkStatus());
    return ready(i, std::move(placed[i]));
  };
  absl::Status status = loader(frames, where, loaded);
  // Which of them the error is about, if it is about any, whoever waits for one finds out.
  for (const Pin& pin : placed) {
    if (pin) Settle(pin, State::kGivenUp, absl::OkStatus());
  }
  RK_RETURN_IF_ERROR(status);
  return others;
}

absl::Status FrameCache::GetAll(absl::Span<const FrameId> frames, const PagesOf& pages_of,
                                const BulkLoader& loader, const FrameReady& ready) {
  std::vector<size_t> missing;  // positions in `frames`
  std::vector<FrameId> to_load;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (Pin pin = Get(frames[i])) {
      RK_RETURN_IF_ERROR(ready(i, std::move(pin)));
      continue;
    }
    RK_RETURN_IF_ERROR(CheckPages(frames[i], pages_of(frames[i])));
    missing.push_back(i);
    to_load.push_back(frames[i]);
  }
  if (to_load.empty()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(std::vector<size_t> others,
                      LoadMissing(to_load, pages_of, loader,
                                  [&](size_t i, Pin pin) { return ready(missing[i], std::move(pin)); }));
  const Loader load_one = [&](FrameId frame, absl::Span<std::byte> out) {
    return loader(
        {&frame, 1}, [&](size_t) { return out; }, [](size_t) { return absl::OkStatus(); });
  };
  for (size_t i : others) {
    RK_ASSIGN_OR_RETURN(Pin pin, GetOrLoad(to_load[i], pages_of(to_load[i]), load_one));
    RK_RETURN_IF_ERROR(ready(missing[i], std::move(pin)));
  }
  return absl::OkStatus();
}

namespace {

FrameCache::PagesOf PagesIn(const store::ImageReader& image) {
  return [&image](FrameId frame) { return image.FramePages(frame); };
}

FrameCache::BulkLoader LoadFrom(const store::ImageReader& image) {
  return [&image](absl::Span<const FrameId> frames, const store::ImageReader::FrameTarget& where,
                  const store::ImageReader::FrameLoaded& loaded) {
    return image.LoadFrames(frames, where, loaded);
  };
}

}  // namespace

absl::Status FrameCache::GetAll(const store::ImageReader& image, absl::Span<const FrameId> frames,
                                const FrameReady& ready) {
  return GetAll(frames, PagesIn(image), LoadFrom(image), ready);
}

bool FrameCache::HasRoomForWarming(uint32_t pages, uint64_t most_bytes) const {
  return policy_.bytes() + SlabPool::SlotBytes(pages) <= std::min(most_bytes, pool_.budget_bytes());
}

uint64_t FrameCache::Warm(absl::Span<const FrameId> list, const PagesOf& pages_of, const Loader& loader,
                          uint64_t most_bytes, const std::function<bool()>& go_on) {
  uint64_t loaded = 0;
  std::vector<std::byte> bytes(size_t{store::kMaxPagesOfFrame} * kPageSize);
  for (const FrameId& frame : list) {
    const uint32_t pages = pages_of(frame);
    if (pages == 0 || pages > store::kMaxPagesOfFrame) continue;
    {
      absl::MutexLock lock(&mutex_);
      if (entries_.contains(frame)) continue;
      if (!HasRoomForWarming(pages, most_bytes)) break;
    }
    if (!go_on()) break;
    const absl::Span<std::byte> out = absl::MakeSpan(bytes).first(size_t{pages} * kPageSize);
    if (!loader(frame, out).ok()) continue;
    Pin pin;
    {
      absl::MutexLock lock(&mutex_);
      if (entries_.contains(frame)) continue;
      pin = Place(frame, pages, Room::kFree);
    }
    if (!pin) break;
    memcpy(pin.entry_->data, out.data(), out.size());
    Settle(pin, State::kReady, absl::OkStatus());
    ++loaded;
  }
  return loaded;
}

uint64_t FrameCache::Warm(const store::ImageReader& image, absl::Span<const FrameId> list,
                          uint64_t most_bytes, const std::function<bool()>& go_on) {
  const Loader loader = [&image](FrameId id, absl::Span<std::byte> out) { return image.LoadFrame(id, out); };
  return Warm(list, PagesIn(image), loader, most_bytes, go_on);
}

absl::Status FrameCache::SetBudget(uint64_t budget_bytes) {
  {
    absl::MutexLock lock(&mutex_);
    RK_RETURN_IF_ERROR(pool_.SetBudget(budget_bytes));
    policy_.SetCapacity(pool_.budget_bytes());
  }
  for (;;) {
    absl::MutexLock lock(&mutex_);
    auto may_go = [this](const FrameId& id)
                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return entries_.at(id)->pins == 0; };
    for (int i = 0; i < kEvictionsAtOnce; ++i) {
      if (pool_.bytes_in_use() <= pool_.budget_bytes()) return absl::OkStatus();
      const std::optional<FrameId> victim = policy_.Evict(may_go);
      if (!victim) return absl::OkStatus();
      const EntryPtr entry = entries_.at(*victim);
      ++stats_.evictions;
      Drop(entry);
    }
    Compact();
  }
}

std::vector<FrameId> FrameCache::Frames() const {
  std::vector<FrameId> frames;
  absl::MutexLock lock(&mutex_);
  frames.reserve(entries_.size());
  for (const auto& [frame, entry] : entries_) frames.push_back(frame);
  return frames;
}

void FrameCache::Discard(absl::Span<const FrameId> frames) {
  bool any = false;
  while (!frames.empty()) {
    const size_t now = std::min<size_t>(frames.size(), kEvictionsAtOnce);
    absl::MutexLock lock(&mutex_);
    for (const FrameId& frame : frames.first(now)) {
      const auto found = entries_.find(frame);
      if (found == entries_.end() || found->second->pins > 0) continue;
      Drop(EntryPtr(found->second));
      any = true;
    }
    frames.remove_prefix(now);
  }
  // Slabs that others share, one at a time.
  for (bool freed = any; freed;) {
    absl::MutexLock lock(&mutex_);
    const uint64_t before = pool_.bytes_in_use();
    Compact();
    freed = pool_.bytes_in_use() < before;
  }
}

std::vector<FrameId> FrameCache::HotList(size_t max_frames) const {
  absl::MutexLock lock(&mutex_);
  return policy_.Hot(max_frames);
}

FrameCacheStats FrameCache::Stats() const {
  absl::MutexLock lock(&mutex_);
  FrameCacheStats stats = stats_;
  stats.frames = policy_.size();
  stats.memory_bytes = pool_.bytes_in_use();
  stats.budget_bytes = pool_.budget_bytes();
  return stats;
}

uint64_t FrameCache::HugeBytes() const { return pool_storage_->HugeBytes(); }

int FrameCache::file() const { return pool_storage_->file(); }

uint64_t FrameCache::OffsetOf(const Pin& pin) const { return pool_storage_->OffsetOf(pin.bytes().data()); }

std::string EncodeFrameList(absl::Span<const FrameId> frames) {
  std::vector<uint64_t> packs;
  for (const FrameId& frame : frames) packs.push_back(frame.pack);
  std::sort(packs.begin(), packs.end());
  packs.erase(std::unique(packs.begin(), packs.end()), packs.end());
  store::Encoder encoder;
  encoder.Varint(packs.size());
  for (uint64_t pack : packs) encoder.U64(pack);
  encoder.Varint(frames.size());
  for (const FrameId& frame : frames) {
    encoder.Varint(
        static_cast<uint64_t>(std::lower_bound(packs.begin(), packs.end(), frame.pack) - packs.begin()));
    encoder.Varint(frame.frame);
  }
  return encoder.Take();
}

absl::StatusOr<std::vector<FrameId>> DecodeFrameList(absl::string_view bytes) {
  const auto damaged = absl::DataLossError("the list of frames is damaged");
  store::Decoder decoder(bytes);
  const uint64_t pack_count = decoder.Varint();
  if (pack_count > decoder.remaining() / sizeof(uint64_t)) return damaged;
  std::vector<uint64_t> packs(pack_count);
  for (uint64_t& pack : packs) pack = decoder.U64();
  const uint64_t count = decoder.Varint();
  if (count > decoder.remaining() / 2) return damaged;
  std::vector<FrameId> frames(count);
  for (FrameId& frame : frames) {
    const uint64_t pack = decoder.Varint(), number = decoder.Varint();
    if (!decoder.ok() || pack >= packs.size() || number > ~uint32_t{0}) return damaged;
    frame = {packs[pack], static_cast<uint32_t>(number)};
  }
  if (!decoder.AtEnd()) return damaged;
  return frames;
}

}  // namespace rekindle::restore
