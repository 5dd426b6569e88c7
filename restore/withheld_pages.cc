#include "restore/withheld_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/huge_pages.h"
#include "base/status.h"
#include "restore/fill_from_memory.h"

namespace rekindle::restore {
namespace {

// Below this an area is cheaper to leave to CRIU than to treat apart.
constexpr uint64_t kLeastWithheldBytes = 1u << 20;
bool MayBeFilled(const criu::Vma& area) {
  return area.plain_anonymous() && (area.prot & PROT_WRITE) != 0 && (area.flags & MAP_GROWSDOWN) == 0;
}

// Which addresses tasks have. A tree may have hundreds of thousands of areas: each question is a search.
class AddressesOfTasks {
 public:
  explicit AddressesOfTasks(const std::vector<TaskMemory>& tasks) {
    for (const TaskMemory& task : tasks) {
      for (const criu::Vma& area : task.areas) up_to_here_.push_back({area.start, {area.end, task.pid}, {}});
    }
    std::sort(up_to_here_.begin(), up_to_here_.end(),
              [](const UpToHere& a, const UpToHere& b) { return a.start < b.start; });
    End first, second;
    for (UpToHere& here : up_to_here_) {
      const End own = here.first;
      if (own.pid == first.pid || first.end == 0) {
        if (own.end > first.end) first = own;
      } else if (own.end > first.end) {
        second = std::exchange(first, own);
      } else if (own.end > second.end) {
        second = own;
      }
      here.first = first;
      here.second = second;
    }
  }

  bool AnyOtherHas(pid_t pid, const criu::Vma& area) const {
    // Of what begins before the area's end, does the one of another that goes furthest reach into it?
    auto here = std::lower_bound(up_to_here_.begin(), up_to_here_.end(), area.end,
                                 [](const UpToHere& at, uint64_t end) { return at.start < end; });
    if (here == up_to_here_.begin()) return false;
    --here;
    const End& furthest = here->first.pid == pid ? here->second : here->first;
    return furthest.end > area.start;
  }

 private:
  struct End {
    uint64_t end = 0;
    pid_t pid = 0;
  };
  // Of the areas that begin here or before: the one that ends last, and the one of another task that does.
  struct UpToHere {
    uint64_t start = 0;
    End first, second;
  };
  std::vector<UpToHere> up_to_here_;
};

uint64_t EndOf(const criu::PagemapEntry& entry) { return entry.address + entry.pages * store::kPageSize; }

// What a pagemap has, by addresses.
class PresentPages {
 public:
  explicit PresentPages(const criu::Pagemap& pagemap) {
    for (const criu::PagemapEntry& entry : pagemap.entries) {
      if (entry.flags & criu::kPagePresent) entries_.push_back(entry);
    }
    const auto before = [](const auto& a, const auto& b) { return a.address < b.address; };
    if (!std::is_sorted(entries_.begin(), entries_.end(), before))
      std::sort(entries_.begin(), entries_.end(), before);
  }

  // Cut at `area`.
  std::vector<criu::PagemapEntry> In(const criu::Vma& area) const {
    std::vector<criu::PagemapEntry> inside;
    auto entry = std::partition_point(entries_.begin(), entries_.end(),
                                      [&](const criu::PagemapEntry& e) { return EndOf(e) <= area.start; });
    for (; entry != entries_.end() && entry->address < area.end; ++entry) {
      const uint64_t begin = std::max(entry->address, area.start), end = std::min(EndOf(*entry), area.end);
      if (begin < end) inside.push_back({begin, (end - begin) / store::kPageSize, entry->flags, 0});
    }
    return inside;
  }

 private:
  std::vector<criu::PagemapEntry> entries_;  // ascending, disjoint
};

uint64_t Bytes(const std::vector<criu::PagemapEntry>& entries) {
  uint64_t sum = 0;
  for (const auto& entry : entries) sum += entry.pages * store::kPageSize;
  return sum;
}

// `pagemap` without what lies in `areas` (ascending, disjoint).
criu::Pagemap Without(const criu::Pagemap& pagemap, const std::vector<criu::Vma>& areas) {
  criu::Pagemap kept;
  kept.pages_id = pagemap.pages_id;
  for (const criu::PagemapEntry& entry : pagemap.entries) {
    uint64_t at = entry.address;
    const uint64_t end = EndOf(entry);
    auto area = std::partition_point(areas.begin(), areas.end(),
                                     [at](const criu::Vma& one) { return one.end <= at; });
    for (; area != areas.end() && area->start < end; ++area) {
      if (area->start > at)
        kept.entries.push_back({at, (area->start - at) / store::kPageSize, entry.flags, 0});
      at = std::min(area->end, end);
    }
    if (at < end) kept.entries.push_back({at, (end - at) / store::kPageSize, entry.flags, 0});
  }
  return kept;
}

}  // namespace

std::vector<WithheldTask> ChooseWithheld(const std::vector<TaskMemory>& tasks) {
  std::vector<WithheldTask> chosen;
  const AddressesOfTasks addresses(tasks);
  for (const TaskMemory& task : tasks) {
    WithheldTask withheld;
    withheld.pid = task.pid;
    withheld.object = task.object.object();
    const PresentPages pages(task.pagemap);
    std::vector<criu::Vma> areas;
    for (const criu::Vma& area : task.areas) {
      if (!MayBeFilled(area) || area.end - area.start < kLeastWithheldBytes) continue;
      std::vector<criu::PagemapEntry> present = pages.In(area);
      uint64_t bytes = Bytes(present);
      if (bytes < kLeastWithheldBytes || addresses.AnyOtherHas(task.pid, area)) continue;
      // Where they were asked for (MADV_HUGEPAGE) the first page that comes makes the kernel give one.
      if (!task.huge_pages_disabled && !(area.madv & (1ull << MADV_NOHUGEPAGE | 1ull << MADV_HUGEPAGE))) {
        withheld.huge_allowed.push_back({area.start, area.end});
      }
      for (const auto& entry : present) withheld.ranges.push_back({entry.address, entry.pages, false});
      withheld.bytes += bytes;
      areas.push_back(area);
    }
    if (areas.empty()) continue;
    std::sort(areas.begin(), areas.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
    std::sort(withheld.huge_allowed.begin(), withheld.huge_allowed.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    std::sort(withheld.ranges.begin(), withheld.ranges.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    withheld.kept = Without(task.pagemap, areas);
    chosen.push_back(std::move(withheld));
  }
  return chosen;
}

std::vector<WithheldTask> ChooseLazy(const std::vector<TaskMemory>& tasks) {
  std::vector<WithheldTask> chosen;
  for (const TaskMemory& task : tasks) {
    WithheldTask withheld;
    withheld.pid = task.pid;
    withheld.object = task.object.object();
    const PresentPages pages(task.pagemap);
    std::vector<criu::Vma> areas = LazyAreas(task);
    for (const criu::Vma& area : areas) {
      for (const auto& entry : pages.In(area)) {
        withheld.ranges.push_back({entry.address, entry.pages, false});
        withheld.bytes += entry.pages * store::kPageSize;
      }
    }
    for (criu::Vma& area : WrittenAreas(task)) areas.push_back(std::move(area));
    std::sort(areas.begin(), areas.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
    withheld.kept = Without(task.pagemap, areas);
    // What is left is not ours to serve, whatever was thought of it when it was dumped.
    for (criu::PagemapEntry& entry : withheld.kept.entries) entry.flags &= ~criu::kPageLazy;
    chosen.push_back(std::move(withheld));
  }
  return chosen;
}

absl::Status FillWithheld(const store::ImageReader& image, const store::ImageInMemory* in_memory,
                          const std::vector<WithheldTask>& tasks, std::atomic<uint64_t>* bytes_done) {
  if (in_memory != nullptr && in_memory->digest != image.info().digest) in_memory = nullptr;
  const bool huge_pages = HugePagesAllowed();
  BackingCosts costs;
  for (const WithheldTask& task : tasks) {
    std::vector<uint64_t> blocks;
    if (huge_pages && !task.huge_allowed.empty()) {
      RK_ASSIGN_OR_RETURN(std::vector<store::PageRun> runs, image.Runs(task.object));
      blocks = BlocksWorthAHugePage(task.huge_allowed, runs);
    }
    MemoryFiller filler(task.pid, std::move(blocks), &costs);
    auto sink = [&](uint64_t address, absl::Span<const std::byte> pages) -> absl::Status {
      RK_RETURN_IF_ERROR(filler.Write(address, pages));
      bytes_done->fetch_add(pages.size(), std::memory_order_relaxed);
      return absl::OkStatus();
    };
    std::vector<store::PageRun> ranges = task.ranges;
    if (in_memory != nullptr) {
      if (auto pages = in_memory->objects.find(task.object); pages != in_memory->objects.end()) {
        RK_ASSIGN_OR_RETURN(ranges, FillFromMemory(pages->second, ranges, sink));
      }
    }
    RK_RETURN_IF_ERROR(image.ReadRanges(task.object, ranges, sink));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
