/* What the page filter, in rekindle-criu-preload.so, and Rekindle say to each other. Plain C. */
#pragma once

#include <stdint.h>

/* In CRIU's working directory; a stream of PageFilterRange. */
#define PAGE_FILTER_SOCKET "page-filter.sock"

/* Memory of a frozen task, in whole pages, that CRIU was not told of. */
struct PageFilterRange {
  uint64_t pid, start, end;
};
