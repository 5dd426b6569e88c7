#include "restore/pages_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/positioned_io.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"
#include "restore/criu_files.h"

namespace rekindle::restore {
namespace {

// Where the pages of one run of addresses go in the file.
struct Placement {
  uint64_t address = 0, end = 0, file_offset = 0;
};

// File offsets of the present entries, which lie in the file one after another.
std::vector<Placement> Place(const criu::Pagemap& pagemap, bool by_offset) {
  std::vector<Placement> placements;
  uint64_t offset = 0;
  for (const criu::PagemapEntry& entry : pagemap.entries) {
    if (!(entry.flags & criu::kPagePresent)) continue;
    uint64_t bytes = entry.pages * store::kPageSize;
    uint64_t address = by_offset ? offset : entry.address;
    placements.push_back({address, address + bytes, offset});
    offset += bytes;
  }
  return placements;
}

}  // namespace

absl::StatusOr<criu::Pagemap> ReadPagemap(const store::ImageReader& image, const v1::PagesObject& object) {
  RK_ASSIGN_OR_RETURN(std::string content, ReadCriuFile(image, object.pagemap_file()));
  auto pagemap = criu::ParsePagemap(content);
  if (!pagemap.ok()) return Annotate(pagemap.status(), absl::StrCat("reading ", object.pagemap_file()));
  return pagemap;
}

absl::Status WritePagesFile(const store::ImageReader& image, const v1::PagesObject& object,
                            const criu::Pagemap& pagemap, int file, const std::string& path,
                            std::atomic<uint64_t>* bytes_done, const std::atomic<bool>* cancel) {
  bool by_offset = absl::StartsWith(object.object(), v1::kRawPagesPrefix);
  std::vector<Placement> placements = Place(pagemap, by_offset);
  if (placements.empty()) return absl::OkStatus();
  uint64_t size = placements.back().file_offset + placements.back().end - placements.back().address;
  if (::ftruncate(file, static_cast<off_t>(size)) != 0)
    return ErrnoStatus(errno, absl::StrCat("writing ", path));

  std::vector<store::PageRun> ranges;
  for (const Placement& p : placements)
    ranges.push_back({p.address, (p.end - p.address) / store::kPageSize, false});
  auto sink = [&](uint64_t address, absl::Span<const std::byte> pages) -> absl::Status {
    if (cancel != nullptr && *cancel)
      return absl::CancelledError(absl::StrCat("writing ", path, " was cancelled"));
    uint64_t total = pages.size();
    while (!pages.empty()) {
      auto after = std::upper_bound(placements.begin(), placements.end(), address,
                                    [](uint64_t a, const Placement& p) { return a < p.address; });
      if (after == placements.begin() || std::prev(after)->end <= address) {
        return absl::InternalError(
            absl::StrCat("writing ", path, ": the store gave a page nobody asked for"));
      }
      const Placement& p = *std::prev(after);
      auto part = pages.subspan(0, p.end - address);
      RK_RETURN_IF_ERROR(Annotate(WriteAt(file, p.file_offset + (address - p.address), part), path));
      pages.remove_prefix(part.size());
      address += part.size();
    }
    bytes_done->fetch_add(total, std::memory_order_relaxed);
    return absl::OkStatus();
  };
  return image.ReadRanges(object.object(), ranges, sink);
}

}  // namespace rekindle::restore
