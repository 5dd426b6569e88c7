// Which pages a copy of a template has come to need: those that it wrote to, and so has for itself, and those
// of files that it looked at. The next copies get them in one go instead of by a fault for each.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

struct TouchedPages {
  bool whole = true;  // false: the process ended while it was looked at, and there may be more

  // As hook/touch_pages.h has them: start and end, the lowest bit of which says that the pages are its own.
  std::vector<uint64_t> ranges;
  uint64_t own_bytes = 0;
};

// One area of /proc/PID/maps and its entries of /proc/PID/pagemap, from its first page on.
void AddTouchedPages(uint64_t start, const std::vector<uint64_t>& entries, TouchedPages* touched);

// A private area of a process.
struct TouchedArea {
  uint64_t start = 0, offset = 0;  // of what is mapped at `start`, in the file
  std::string path;                // empty, or in brackets: of no file
};
// Each that can be touched at all and is `wanted`, and what of it was. Areas beyond all reason (reserved
// address space) are left out. NotFound: it has ended, before or meanwhile; what was visited may be only a
// part.
absl::Status VisitTouchedAreas(pid_t pid, absl::FunctionRef<bool(const TouchedArea&)> wanted,
                               absl::FunctionRef<void(const TouchedArea&, const TouchedPages&)> visit);

// Of a process as it is now; it may run meanwhile. Takes about a millisecond for each 100 MiB that it has.
// NotFound: it ended before anything was seen.
absl::StatusOr<TouchedPages> FindTouchedPages(pid_t pid);

// A file in memory for the hook, which nobody can change any more.
absl::StatusOr<UniqueFd> MakeTouchList(const TouchedPages& touched);

}  // namespace rekindle::restore
