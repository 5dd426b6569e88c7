/* PAGEMAP_SCAN, which tells of what kind the pages of a stretch of memory are: of <linux/fs.h>, from
 * Linux 6.7 on (Documentation/admin-guide/mm/pagemap.rst). Plain C. */
#pragma once

#include <stdint.h>

struct PageRegion {
  uint64_t start, end, categories;
};
struct ScanArguments {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN_REQUEST 0xc0606610ul
#define IS_FILE (1u << 2)
#define IS_PRESENT (1u << 3)
#define IS_SWAPPED (1u << 4)
#define IS_ZERO (1u << 5)
#define IS_GUARD (1u << 8) /* from 6.15 on; it counts as swapped, and is no page */

/* CRIU asks for pages that are present or swapped, and neither a file's nor the zero page. */
#define PAGES_WITHOUT_CONTENT (IS_ZERO | IS_FILE)
#define PAGES_WITH_CONTENT (IS_PRESENT | IS_SWAPPED)
