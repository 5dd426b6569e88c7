#include "restore/slab_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::restore {

namespace {

using store::kMaxPagesOfFrame;
using store::kPageSize;

// Sizes of slots in pages: each fills a slab nearly to its end, and from 4 on none is more than a quarter
// larger than the one before.
constexpr uint8_t kClassPages[] = {1,  2,  3,  4,  5,  6,  7,  8,  10, 12, 14,
                                   16, 18, 21, 25, 28, 32, 36, 42, 51, 64};
constexpr size_t kClasses = std::size(kClassPages);
constexpr uint32_t kSlabPages = SlabPool::kSlabBytes / kPageSize;
// Free slabs that keep their memory, for the next ones to be taken.
constexpr size_t kResidentFreeSlabs = 4;

constexpr std::array<uint8_t, kMaxPagesOfFrame + 1> ClassTable() {
  std::array<uint8_t, kMaxPagesOfFrame + 1> table{};
  uint8_t size_class = 0;
  for (uint32_t pages = 1; pages <= kMaxPagesOfFrame; ++pages) {
    if (pages > kClassPages[size_class]) ++size_class;
    table[pages] = size_class;
  }
  return table;
}
constexpr std::array<uint8_t, kMaxPagesOfFrame + 1> kClassOf = ClassTable();

uint32_t SlotsPerSlab(int size_class) { return kSlabPages / kClassPages[size_class]; }

// A descriptor through which nobody can change what this process has verified.
absl::StatusOr<UniqueFd> ReadOnly(int fd) { return OpenFile(absl::StrCat("/proc/self/fd/", fd), O_RDONLY); }

}  // namespace

absl::StatusOr<std::unique_ptr<SlabPool>> SlabPool::Make(uint64_t budget_bytes, bool shared,
                                                         uint64_t most_bytes) {
  const size_t slabs = std::max(budget_bytes, most_bytes) / kSlabBytes;
  if (slabs == 0) {
    return std::unique_ptr<SlabPool>(new SlabPool(nullptr, 0, nullptr, 0, UniqueFd()));
  }
  auto failed = [&](absl::string_view what) {
    return ErrnoStatus(
        errno, absl::StrCat(what, " for a cache of ", slabs * kSlabBytes, " bytes (a smaller one may go)"));
  };
  // One slab more, so that the first one can begin at a multiple of its size.
  const size_t mapping_bytes = (slabs + 1) * kSlabBytes;
  // Without access it is nothing but addresses, whatever the kernel's rules for promising memory.
  void* mapping = mmap(nullptr, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return failed("reserving addresses");
  const auto at = reinterpret_cast<uintptr_t>(mapping);
  auto* base = reinterpret_cast<std::byte*>((at + kSlabBytes - 1) / kSlabBytes * kSlabBytes);
  UniqueFd for_others;
  if (shared) {
    UniqueFd file(memfd_create("rekindle-frames", MFD_CLOEXEC));
    auto read_only = file.valid() ? ReadOnly(file.get()) : failed("making a file in memory");
    absl::Status status = read_only.status();
    if (status.ok() &&
        (ftruncate(file.get(), static_cast<off_t>(slabs * kSlabBytes)) != 0 ||
         mmap(base, slabs * kSlabBytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED)) {
      status = failed("mapping a file in memory");
    }
    if (!status.ok()) {
      munmap(mapping, mapping_bytes);
      return status;
    }
    for_others = *std::move(read_only);
  }
  // Without them all works, at more page faults.
  (void)madvise(base, slabs * kSlabBytes, MADV_HUGEPAGE);
  std::unique_ptr<SlabPool> pool(
      new SlabPool(static_cast<std::byte*>(mapping), mapping_bytes, base, slabs, std::move(for_others)));
  RK_RETURN_IF_ERROR(pool->SetBudget(budget_bytes));
  return pool;
}

SlabPool::SlabPool(std::byte* mapping, size_t mapping_bytes, std::byte* base, size_t slabs, UniqueFd file)
    : mapping_(mapping),
      mapping_bytes_(mapping_bytes),
      base_(base),
      file_(std::move(file)),
      slabs_(slabs),
      partial_(kClasses),
      free_slots_(kClasses) {
  for (size_t i = slabs; i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));
}

SlabPool::~SlabPool() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

uint32_t SlabPool::SlotBytes(uint32_t pages) { return kClassPages[kClassOf[pages]] * kPageSize; }

absl::Status SlabPool::SetBudget(uint64_t budget_bytes) {
  const size_t slabs = std::min<uint64_t>(budget_bytes / kSlabBytes, slabs_.size());
  if (slabs > accessible_slabs_) {
    if (mprotect(base_ + accessible_slabs_ * kSlabBytes, (slabs - accessible_slabs_) * kSlabBytes,
                 PROT_READ | PROT_WRITE) != 0) {
      return ErrnoStatus(errno, absl::StrCat("getting memory for a cache of ", slabs * kSlabBytes,
                                             " bytes (a smaller one may go)"));
    }
    accessible_slabs_ = slabs;
  }
  budget_slabs_ = slabs;
  return absl::OkStatus();
}

uint64_t SlabPool::HugeBytes() const {
  auto text = ReadFile("/proc/self/smaps");
  if (!text.ok() || slabs_.empty()) return 0;
  const uint64_t base = reinterpret_cast<uintptr_t>(base_), end = base + slabs_.size() * kSlabBytes;
  uint64_t bytes = 0;
  bool ours = false;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const std::pair<absl::string_view, absl::string_view> range =
        absl::StrSplit(words.empty() ? absl::string_view() : words[0], absl::MaxSplits('-', 1));
    uint64_t begin = 0, kilobytes = 0;
    if (!range.second.empty() && absl::SimpleHexAtoi(range.first, &begin)) {
      ours = begin >= base && begin < end;
    } else if (ours && words.size() > 1 && (words[0] == "AnonHugePages:" || words[0] == "ShmemPmdMapped:") &&
               absl::SimpleAtoi(words[1], &kilobytes)) {
      bytes += kilobytes << 10;
    }
  }
  return bytes;
}

std::optional<SlabPool::Slot> SlabPool::Allocate(uint32_t pages, store::FrameId owner) {
  const uint8_t size_class = kClassOf[pages];
  if (!partial_[size_class].empty()) return Take(partial_[size_class].back(), owner);
  if (slabs_in_use() >= budget_slabs_) return std::nullopt;
  const uint32_t index = free_.back();
  free_.pop_back();
  if (resident_free_ > 0) --resident_free_;
  Slab& slab = slabs_[index];
  const uint32_t slots = SlotsPerSlab(size_class);
  slab.size_class = size_class;
  slab.owners.assign(slots, std::nullopt);
  for (uint32_t i = slots; i > 0; --i) slab.free_slots.push_back(static_cast<uint16_t>(i - 1));
  free_slots_[size_class] += slots;
  AddPartial(index);
  return Take(index, owner);
}

SlabPool::Slot SlabPool::Take(uint32_t slab_index, store::FrameId owner) {
  Slab& slab = slabs_[slab_index];
  const uint16_t slot = slab.free_slots.back();
  slab.free_slots.pop_back();
  slab.owners[slot] = owner;
  ++slab.live;
  --free_slots_[slab.size_class];
  if (slab.free_slots.empty()) DropPartial(slab_index);
  return {slab_index, slot};
}

void SlabPool::Free(Slot slot) {
  Slab& slab = slabs_[slot.slab];
  if (slab.free_slots.empty()) AddPartial(slot.slab);
  slab.free_slots.push_back(slot.index);
  slab.owners[slot.index].reset();
  ++free_slots_[slab.size_class];
  if (--slab.live > 0) return;
  free_slots_[slab.size_class] -= SlotsPerSlab(slab.size_class);
  DropPartial(slot.slab);
  slab.size_class = -1;
  slab.free_slots.clear();
  GiveBack(slot.slab);
}

void SlabPool::GiveBack(uint32_t slab) {
  if (resident_free_ < kResidentFreeSlabs) {
    ++resident_free_;
    free_.push_back(slab);
    return;
  }
  (void)madvise(base_ + slab * kSlabBytes, kSlabBytes, file_.valid() ? MADV_REMOVE : MADV_DONTNEED);
  free_.insert(free_.end() - static_cast<ptrdiff_t>(resident_free_), slab);
}

absl::Span<std::byte> SlabPool::Memory(Slot slot) const {
  const size_t bytes = kClassPages[slabs_[slot.slab].size_class] * kPageSize;
  return {base_ + slot.slab * kSlabBytes + slot.index * bytes, bytes};
}

void SlabPool::AddPartial(uint32_t slab) {
  std::vector<uint32_t>& list = partial_[slabs_[slab].size_class];
  slabs_[slab].place = static_cast<uint32_t>(list.size());
  list.push_back(slab);
}

void SlabPool::DropPartial(uint32_t slab) {
  std::vector<uint32_t>& list = partial_[slabs_[slab].size_class];
  const uint32_t place = slabs_[slab].place;
  list[place] = list.back();
  slabs_[list[place]].place = place;
  list.pop_back();
}

std::optional<uint32_t> SlabPool::SlabToEmpty() const {
  std::optional<uint32_t> best;
  for (size_t size_class = 0; size_class < kClasses; ++size_class) {
    // The free slots of all but this slab must hold what lives in it: together that is a slab's worth.
    if (free_slots_[size_class] < SlotsPerSlab(static_cast<int>(size_class))) continue;
    for (uint32_t slab : partial_[size_class]) {
      auto bytes = [&](uint32_t s) { return slabs_[s].live * kClassPages[slabs_[s].size_class]; };
      if (!best || bytes(slab) < bytes(*best)) best = slab;
    }
  }
  return best;
}

std::vector<std::pair<SlabPool::Slot, store::FrameId>> SlabPool::SlotsOf(uint32_t slab) const {
  std::vector<std::pair<Slot, store::FrameId>> slots;
  for (size_t i = 0; i < slabs_[slab].owners.size(); ++i) {
    const std::optional<store::FrameId>& owner = slabs_[slab].owners[i];
    if (owner) slots.push_back({{slab, static_cast<uint16_t>(i)}, *owner});
  }
  return slots;
}

std::optional<SlabPool::Slot> SlabPool::AllocateBeside(uint32_t slab, store::FrameId owner) {
  for (uint32_t other : partial_[slabs_[slab].size_class]) {
    if (other != slab) return Take(other, owner);
  }
  return std::nullopt;
}

}  // namespace rekindle::restore
