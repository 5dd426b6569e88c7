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

bool AnyOtherTaskHas(const std::vector<TaskMemory>& tasks, const TaskMemory& self, const criu::Vma& area) {
  for (const TaskMemory& task : tasks) {
    if (task.pid == self.pid) continue;
    for (const criu::Vma& other : task.areas) {
      if (other.start < area.end && area.start < other.end) return true;
    }
  }
  return false;
}

// The present entries of a pagemap, cut at `area`.
std::vector<criu::PagemapEntry> PresentIn(const criu::Pagemap& pagemap, const criu::Vma& area) {
  std::vector<criu::PagemapEntry> inside;
  for (const criu::PagemapEntry& entry : pagemap.entries) {
    if (!(entry.flags & criu::kPagePresent)) continue;
    uint64_t begin = std::max(entry.address, area.start);
    uint64_t end = std::min(entry.address + entry.pages * store::kPageSize, area.end);
    if (begin >= end) continue;
    inside.push_back({begin, (end - begin) / store::kPageSize, entry.flags, 0});
  }
  return inside;
}

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
    uint64_t at = entry.address, end = entry.address + entry.pages * store::kPageSize;
    for (const criu::Vma& area : areas) {
      if (area.end <= at) continue;
      if (area.start >= end) break;
      if (area.start > at) kept.entries.push_back({at, (area.start - at) / store::kPageSize, entry.flags, 0});
      at = std::min(area.end, end);
    }
    if (at < end) kept.entries.push_back({at, (end - at) / store::kPageSize, entry.flags, 0});
  }
  return kept;
}

}  // namespace

std::vector<WithheldTask> ChooseWithheld(const std::vector<TaskMemory>& tasks) {
  std::vector<WithheldTask> chosen;
  for (const TaskMemory& task : tasks) {
    WithheldTask withheld;
    withheld.pid = task.pid;
    withheld.object = task.object.object();
    std::vector<criu::Vma> areas;
    for (const criu::Vma& area : task.areas) {
      if (!MayBeFilled(area) || area.end - area.start < kLeastWithheldBytes) continue;
      std::vector<criu::PagemapEntry> present = PresentIn(task.pagemap, area);
      uint64_t bytes = Bytes(present);
      if (bytes < kLeastWithheldBytes || AnyOtherTaskHas(tasks, task, area)) continue;
      if (!task.huge_pages_disabled && !(area.madv & 1ull << MADV_NOHUGEPAGE)) {
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
    std::vector<criu::Vma> areas = LazyAreas(task);
    for (const criu::Vma& area : areas) {
      for (const auto& entry : PresentIn(task.pagemap, area)) {
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
