#include "ckpt/pages_with_content.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>

#include "ckpt/page_marks.h"
#include "ckpt/pagemap_entry.h"
#include "ckpt/pagemap_scan.h"

namespace rekindle::ckpt {

std::vector<AddressRange> PagesWithContentByEntries(int pagemap, uint64_t start, uint64_t end) {
  std::vector<AddressRange> found;
  static const uint64_t zero = ReadZeroFrame();
  std::vector<uint64_t> entries(size_t{64} << 10);  // 256 MiB of memory
  while (start < end) {
    const size_t count = std::min<uint64_t>(entries.size(), (end - start) / PAGEMAP_PAGE_BYTES);
    if (count == 0) return found;
    const auto read = ReadPagemapEntries(pagemap, start / PAGEMAP_PAGE_BYTES, {entries.data(), count});
    if (!read.ok() || *read < count) return found;
    for (size_t i = 0; i < count; ++i, start += PAGEMAP_PAGE_BYTES) {
      if (!HasContent(entries[i], zero)) continue;
      if (!found.empty() && found.back().end == start) {
        found.back().end += PAGEMAP_PAGE_BYTES;
      } else {
        found.push_back({start, start + PAGEMAP_PAGE_BYTES});
      }
    }
  }
  return found;
}

std::vector<AddressRange> PagesWithContent(int pagemap, uint64_t start, uint64_t end) {
  std::vector<AddressRange> found;
  std::vector<PageRegion> regions(1024);
  uint64_t told = PAGES_WITH_CONTENT | IS_GUARD;
  while (start < end) {
    ScanArguments scan = {};
    scan.size = sizeof scan;
    scan.start = start;
    scan.end = end;
    scan.vec = reinterpret_cast<uint64_t>(regions.data());
    scan.vec_len = regions.size();
    scan.category_inverted = scan.category_mask = PAGES_WITHOUT_CONTENT;
    scan.category_anyof_mask = PAGES_WITH_CONTENT;
    scan.return_mask = told;
    const int count = ::ioctl(pagemap, PAGEMAP_SCAN_REQUEST, &scan);
    if (count < 0 && errno == EINVAL && (told & IS_GUARD) != 0) {  // an older kernel, which knows no guards
      told = PAGES_WITH_CONTENT;
      continue;
    }
    if (count < 0 && errno == ENOTTY) return PagesWithContentByEntries(pagemap, start, end);
    if (count < 0 || scan.walk_end <= start) return found;
    for (int i = 0; i < count; ++i) {
      const PageRegion& region = regions[static_cast<size_t>(i)];
      if ((region.categories & IS_GUARD) == 0) found.push_back({region.start, region.end});
    }
    start = scan.walk_end;
  }
  return found;
}

}  // namespace rekindle::ckpt
