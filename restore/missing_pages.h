// Which of a task's pages have still to come, and where in its memory they belong by now: the job may unmap,
// discard and move memory that it has never touched, and fork.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "restore/task_pages.h"

namespace rekindle::restore {

// Take() and Missing() may be called from several threads at once; nothing else at the same time as any other
// call.
class MissingPages {
 public:
  explicit MissingPages(std::shared_ptr<const TaskPages> pages);
  // As a forked child begins: what is missing in the parent is missing in it.
  MissingPages(const MissingPages& parent);

  const TaskPages& pages() const { return *pages_; }
  bool Missing(uint64_t number) const {
    return (bits_[number / 64].load(std::memory_order_relaxed) >> (number % 64) & 1) != 0;
  }
  // It is there now, or must not come any more.
  void Take(uint64_t number);
  uint64_t missing() const { return missing_.load(std::memory_order_relaxed); }

  // The page that belongs at `address`, missing or not; nothing when none does, so that zeros belong there.
  std::optional<uint64_t> NumberAt(uint64_t address) const;
  // Where the pages of `run` are in the task's memory now: pieces of it as (first page of the run, pages,
  // address).
  struct Place {
    uint32_t first = 0, pages = 0;
    uint64_t address = 0;
  };
  std::vector<Place> PlacesOf(size_t run) const;
  // Where in the task's memory such pages may be, ascending: one range for each area, or part of it, that is
  // in one piece. Most of a range's pages need not be missing.
  std::vector<AddressRange> Ranges() const;
  bool AnyMissing(uint64_t begin, uint64_t end) const;

  // The task has discarded (MADV_DONTNEED and such) or unmapped what was there: zeros, or nothing, from now
  // on.
  void Drop(uint64_t begin, uint64_t end);
  // The task has moved memory (mremap); what was at `to` has gone.
  void Move(uint64_t from, uint64_t to, uint64_t bytes);

 private:
  // Memory from the key up to the next key has the pages that the image has from `image` on, or none of them.
  struct Segment {
    bool has_pages = true;
    uint64_t image = 0;
  };
  using Segments = std::map<uint64_t, Segment>;

  // Makes a segment begin at `address`.
  Segments::iterator Split(uint64_t address);
  // Calls visit(begin, end, segment) for the parts of segments in [begin, end); `image` is that of the part's
  // begin.
  template <typename Visit>
  void ForEachPart(uint64_t begin, uint64_t end, Visit visit) const;
  // Calls visit(first, last) for the numbers, [first, last), of the pages in [begin, end).
  template <typename Visit>
  void ForEachNumbers(uint64_t begin, uint64_t end, Visit visit) const;

  const std::shared_ptr<const TaskPages> pages_;
  std::unique_ptr<std::atomic<uint64_t>[]> bits_;
  std::atomic<uint64_t> missing_{0};
  Segments segments_;
};

}  // namespace rekindle::restore
