/* What the page filter, in rekindle-criu-preload.so, and Rekindle say to each other. Plain C. */
#pragma once

#include <stdint.h>

/* In CRIU's working directory; a stream of PageFilterRange. */
#define PAGE_FILTER_SOCKET "page-filter.sock"

/* Memory of a frozen task, in whole pages. */
struct PageFilterRange {
  uint64_t pid, start, end;
  /* 0: pages that CRIU was not told of, to be copied. 1: an area, of which CRIU may leave pages to us later.
   */
  uint64_t ahead;
};
