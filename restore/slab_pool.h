// Memory for frames of 1 to 64 pages, in slabs of 2 MiB that each hold frames of about one size. A slab that
// holds nothing can serve any size again, and its memory goes back to the kernel.
//
// Not thread-safe; the memory of a slot may be used from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

class SlabPool {
 public:
  static constexpr uint64_t kSlabBytes = uint64_t{2} << 20;

  struct Slot {
    uint32_t slab = 0;
    uint16_t index = 0;
  };

  // Reserves addresses for as many slabs as `budget_bytes` (or, to be able to grow, `most_bytes`) has room
  // for; memory is taken when it is used. `shared`: as a file in memory, which other processes can map; the
  // kernel then backs it with huge pages only where the administrator allows that for such files.
  static absl::StatusOr<std::unique_ptr<SlabPool>> Make(uint64_t budget_bytes, bool shared,
                                                        uint64_t most_bytes = 0);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // The memory that a frame of this many pages (1 to 64) takes.
  static uint32_t SlotBytes(uint32_t pages);

  // nullopt: no slot of that size is free, and no slab.
  std::optional<Slot> Allocate(uint32_t pages, store::FrameId owner);
  void Free(Slot slot);
  absl::Span<std::byte> Memory(Slot slot) const;

  // A slab whose frames fit into free slots of other slabs of its size: moving them makes it free.
  std::optional<uint32_t> SlabToEmpty() const;
  std::vector<std::pair<Slot, store::FrameId>> SlotsOf(uint32_t slab) const;
  // A free slot for one of that slab's frames in another slab.
  std::optional<Slot> AllocateBeside(uint32_t slab, store::FrameId owner);

  // At most what was reserved. Of a smaller one no new slabs are taken until fewer are in use.
  absl::Status SetBudget(uint64_t budget_bytes);
  uint64_t budget_bytes() const { return budget_slabs_ * kSlabBytes; }
  uint64_t bytes_in_use() const { return slabs_in_use() * kSlabBytes; }

  // Of the memory, in huge pages. Asks the kernel, which takes a while for much memory.
  uint64_t HugeBytes() const;

  int file() const { return file_.get(); }  // read-only; -1 unless shared
  uint64_t OffsetOf(const std::byte* memory) const { return static_cast<uint64_t>(memory - base_); }

 private:
  struct Slab {
    int size_class = -1;  // -1: free
    uint32_t live = 0;
    uint32_t place = 0;  // in partial_ of its class while it has a free slot
    std::vector<uint16_t> free_slots;
    std::vector<std::optional<store::FrameId>> owners;
  };

  SlabPool(std::byte* mapping, size_t mapping_bytes, std::byte* base, size_t slabs, UniqueFd file);
  size_t slabs_in_use() const { return slabs_.size() - free_.size(); }
  Slot Take(uint32_t slab, store::FrameId owner);
  void AddPartial(uint32_t slab);
  void DropPartial(uint32_t slab);
  void GiveBack(uint32_t slab);

  std::byte* const mapping_;
  const size_t mapping_bytes_;
  std::byte* const base_;  // aligned to kSlabBytes
  const UniqueFd file_;
  std::vector<Slab> slabs_;
  size_t budget_slabs_ = 0;      // of these, that may be in use
  size_t accessible_slabs_ = 0;  // of these, from the first on: the most that the budget ever was
  // The last one is taken next; those that never were in use after all others, the lowest number first: none
  // beyond the accessible ones is taken.
  std::vector<uint32_t> free_;
  size_t resident_free_ = 0;                    // of free_, at its end
  std::vector<std::vector<uint32_t>> partial_;  // by class: slabs with a free slot and a live one
  std::vector<uint32_t> free_slots_;            // by class: in these
};

}  // namespace rekindle::restore
