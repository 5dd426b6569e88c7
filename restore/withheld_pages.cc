#include "restore/withheld_pages.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr uint64_t kHugePageBytes = 2u << 20;
// Below this an area is cheaper to leave to CRIU than to treat apart.
constexpr uint64_t kLeastBytes = 1u << 20;
// Huge pages may take this much more memory than the pages that were there.
constexpr double kMostHugeOverhead = 1.10;

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

// Would backing the area with huge pages keep its memory within bounds? Counts the aligned blocks that are
// touched.
bool HugePagesFit(const criu::Vma& area, const std::vector<criu::PagemapEntry>& present) {
  constexpr uint64_t kNoHugePage = 1ull << MADV_NOHUGEPAGE;
  if (area.madv & kNoHugePage) return false;
  uint64_t first = (area.start + kHugePageBytes - 1) / kHugePageBytes, last = area.end / kHugePageBytes;
  if (first >= last) return false;
  uint64_t blocks = 0, next = first;
  for (const auto& entry : present) {
    uint64_t begin = std::max(entry.address / kHugePageBytes, next);
    uint64_t end = std::min(
        (entry.address + entry.pages * store::kPageSize + kHugePageBytes - 1) / kHugePageBytes, last);
    if (begin >= end) continue;
    blocks += end - begin;
    next = end;
  }
  return static_cast<double>(blocks * kHugePageBytes) <=
         kMostHugeOverhead * static_cast<double>(Bytes(present));
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

absl::Status CopyInto(pid_t pid, uint64_t address, absl::Span<const std::byte> pages) {
  while (!pages.empty()) {
    iovec local{const_cast<std::byte*>(pages.data()), pages.size()};
    iovec remote{reinterpret_cast<void*>(address), pages.size()};
    ssize_t n = ::process_vm_writev(pid, &local, 1, &remote, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return ErrnoStatus(n < 0 ? errno : EFAULT,
                         absl::StrCat("filling the memory of process ", pid, " at ", absl::Hex(address)));
    }
    pages.remove_prefix(static_cast<size_t>(n));
    address += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
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
      if (!MayBeFilled(area) || area.end - area.start < kLeastBytes) continue;
      std::vector<criu::PagemapEntry> present = PresentIn(task.pagemap, area);
      uint64_t bytes = Bytes(present);
      if (bytes < kLeastBytes || AnyOtherTaskHas(tasks, task, area)) continue;
      if (HugePagesFit(area, present)) withheld.huge_areas.insert(area.start);
      for (const auto& entry : present) withheld.ranges.push_back({entry.address, entry.pages, false});
      withheld.bytes += bytes;
      areas.push_back(area);
    }
    if (areas.empty()) continue;
    std::sort(areas.begin(), areas.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
    std::sort(withheld.ranges.begin(), withheld.ranges.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    withheld.kept = Without(task.pagemap, areas);
    chosen.push_back(std::move(withheld));
  }
  return chosen;
}

absl::Status FillWithheld(const store::ImageReader& image, const std::vector<WithheldTask>& tasks,
                          std::atomic<uint64_t>* bytes_done) {
  for (const WithheldTask& task : tasks) {
    auto sink = [&](uint64_t address, absl::Span<const std::byte> pages) -> absl::Status {
      RK_RETURN_IF_ERROR(CopyInto(task.pid, address, pages));
      bytes_done->fetch_add(pages.size(), std::memory_order_relaxed);
      return absl::OkStatus();
    };
    RK_RETURN_IF_ERROR(image.ReadRanges(task.object, task.ranges, sink));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
