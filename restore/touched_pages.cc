#include "restore/touched_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kOwn = 1;
// Documentation/admin-guide/mm/pagemap.rst
constexpr uint64_t kPresent = uint64_t{1} << 63, kOfFile = uint64_t{1} << 61, kExclusive = uint64_t{1} << 56;
constexpr uint64_t kLargestArea = uint64_t{64} << 30;
constexpr uint64_t kEntriesAtOnce = uint64_t{1} << 16;

// Private memory that can be touched at all.
bool Parse(const std::string& line, TouchedArea* area, uint64_t* end) {
  char permissions[5] = "";
  int path = 0;
  if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*s %*s %n", &area->start, end,
                  permissions, &area->offset, &path) != 4 ||
      path == 0) {
    return false;
  }
  area->path = line.substr(static_cast<size_t>(path));
  return permissions[0] == 'r' && permissions[3] == 'p' && *end - area->start <= kLargestArea &&
         !absl::StartsWith(area->path, "[v");
}

}  // namespace

void AddTouchedPages(uint64_t start, const std::vector<uint64_t>& entries, TouchedPages* touched) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t entry = entries[i];
    if ((entry & kPresent) == 0) continue;
    const bool own = (entry & kOfFile) == 0;
    if (own && (entry & kExclusive) == 0) continue;  // the template's still
    const uint64_t mark = own ? kOwn : 0, page = start + i * kPage;
    std::vector<uint64_t>& ranges = touched->ranges;
    if (own) touched->own_bytes += kPage;
    if (!ranges.empty() && ranges.back() == (page | mark)) {
      ranges.back() += kPage;
    } else {
      ranges.push_back(page);
      ranges.push_back((page + kPage) | mark);
    }
  }
}

absl::Status VisitTouchedAreas(pid_t pid, absl::FunctionRef<bool(const TouchedArea&)> wanted,
                               absl::FunctionRef<void(const TouchedArea&, const TouchedPages&)> visit) {
  RK_ASSIGN_OR_RETURN(std::string maps, ReadFile(absl::StrCat("/proc/", pid, "/maps")));
  RK_ASSIGN_OR_RETURN(UniqueFd pagemap, OpenFile(absl::StrCat("/proc/", pid, "/pagemap"), O_RDONLY));
  std::vector<uint64_t> entries;
  for (absl::string_view line : absl::StrSplit(maps, '\n')) {
    TouchedArea area;
    TouchedPages touched;
    uint64_t end = 0;
    if (!Parse(std::string(line), &area, &end) || !wanted(area)) continue;
    for (uint64_t at = area.start; at < end; at += entries.size() * kPage) {
      entries.resize(std::min((end - at) / kPage, kEntriesAtOnce));
      const ssize_t n = ::pread(pagemap.get(), entries.data(), entries.size() * sizeof entries[0],
                                static_cast<off_t>(at / kPage * sizeof entries[0]));
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading the page map of process ", pid));
      entries.resize(static_cast<size_t>(n) / sizeof entries[0]);
      if (entries.empty()) break;
      AddTouchedPages(at, entries, &touched);
    }
    visit(area, touched);
  }
  // Of one that ended meanwhile the lists simply were shorter. Its memory is there, or not, at any address.
  uint64_t entry = 0;
  if (::pread(pagemap.get(), &entry, sizeof entry, 0) != ssize_t{sizeof entry}) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TouchedPages> FindTouchedPages(pid_t pid) {
  TouchedPages all;
  const absl::Status visited = VisitTouchedAreas(
      pid, [](const TouchedArea&) { return true; },
      [&all](const TouchedArea&, const TouchedPages& touched) {
        all.ranges.insert(all.ranges.end(), touched.ranges.begin(), touched.ranges.end());
        all.own_bytes += touched.own_bytes;
      });
  all.whole = visited.ok();
  if (!visited.ok() && all.ranges.empty()) return visited;
  return all;
}

absl::StatusOr<UniqueFd> MakeTouchList(const TouchedPages& touched) {
  UniqueFd list(::memfd_create("rekindle-touch", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!list.valid()) return ErrnoStatus(errno, "listing the pages that a template's copies touch");
  RK_RETURN_IF_ERROR(WriteFully(list.get(), touched.ranges.data(),
                                touched.ranges.size() * sizeof touched.ranges[0], "list of touched pages"));
  if (::fcntl(list.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "sealing the list of pages that a template's copies touch");
  }
  return list;
}

}  // namespace rekindle::restore
