#include "hook/touch_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

void rekindle_touch_pages(int list) {
  struct rekindle_touched_range ranges[128];
  off_t at = 0;
  ssize_t length;
  while ((length = pread(list, ranges, sizeof(ranges), at)) > 0) {
    at += length;
    for (size_t i = 0; i < (size_t)length / sizeof(ranges[0]); ++i) {
      uint64_t end = ranges[i].end & ~UINT64_C(1);
      int advice = (ranges[i].end & 1) != 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
      madvise((void*)(uintptr_t)ranges[i].start, end - ranges[i].start, advice);
    }
  }
}
