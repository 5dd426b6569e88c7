// The kernel's marks on pages that were written: soft-dirty (CONFIG_MEM_SOFT_DIRTY;
// Documentation/admin-guide/mm/soft-dirty.rst and pagemap.rst). Writing "4" to /proc/PID/clear_refs takes the
// marks off all pages of a process, a write to a page puts its mark on again, /proc/PID/pagemap shows it. The
// pages of a memory area that is new since are shown marked, all of them (VM_SOFTDIRTY): whatever was mapped
// there before took its marks along.
//
// PAGEMAP_SCAN with write protection (PM_SCAN_WP_MATCHING, PAGE_IS_WRITTEN; Linux 6.7) would do without
// CONFIG_MEM_SOFT_DIRTY. It wants a userfaultfd (UFFD_FEATURE_WP_ASYNC) that the process itself has made and
// that covers each of its areas, new ones too; a process that holds one can't be captured. So it is not used.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace rekindle::ckpt {

// Thread-safe. An interface, so that tests can stand in for a kernel.
class PageMarks {
 public:
  virtual ~PageMarks() = default;
  // When the process began, in ticks since boot: with the PID it names one process. NotFound: there is none.
  virtual absl::StatusOr<uint64_t> StartTicks(pid_t pid) = 0;
  // Fills `entries` with those of the pages from `first_page` (address / 4096) on. How many it filled; those
  // behind are unknown.
  virtual absl::StatusOr<size_t> Read(pid_t pid, uint64_t first_page, absl::Span<uint64_t> entries) = 0;
  virtual absl::Status Clear(pid_t pid) = 0;
};

std::unique_ptr<PageMarks> KernelPageMarks();

// The same of an opened /proc/PID/pagemap. Thread-safe.
absl::StatusOr<size_t> ReadPagemapEntries(int pagemap, uint64_t first_page, absl::Span<uint64_t> entries);

// Tries them on a page of this process. FailedPrecondition: this kernel, or the lack of CAP_SYS_ADMIN, makes
// them useless; without the option every page reads as not marked.
absl::Status CheckPageMarks(PageMarks& marks);

}  // namespace rekindle::ckpt
