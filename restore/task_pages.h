// Where the pages of one task lie that come into its memory while it runs. Immutable: all copies of an image
// share it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dedup_store/store.h"
#include "restore/memory_filler.h"

namespace rekindle::restore {

class TaskPages {
 public:
  enum class Zeros { kLeaveOut, kKeep };
  // What of `layout` (ascending) lies in `areas` (ascending, disjoint).
  TaskPages(const std::vector<store::StoredRun>& layout, const std::vector<AddressRange>& areas,
            Zeros zeros = Zeros::kLeaveOut);

  // Pages have numbers, in the order of their addresses.
  uint64_t pages() const { return pages_; }
  const std::vector<store::StoredRun>& runs() const { return runs_; }
  const std::vector<AddressRange>& areas() const { return areas_; }
  uint64_t FirstNumberOf(size_t run) const { return first_numbers_[run]; }

  // The run that holds the page at `address`; none when there is no such page.
  std::optional<size_t> FindRun(uint64_t address) const;
  // The first run that ends behind `address`.
  size_t FirstRunBehind(uint64_t address) const;
  // The run that holds page `number`, which must be below pages().
  size_t RunOfNumber(uint64_t number) const;

 private:
  std::vector<AddressRange> areas_;
  std::vector<store::StoredRun> runs_;
  std::vector<uint64_t> first_numbers_;  // of each run
  uint64_t pages_ = 0;
};

}  // namespace rekindle::restore
