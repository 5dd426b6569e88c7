/* What /proc/PID/pagemap tells of each page (Documentation/admin-guide/mm/pagemap.rst), the only way to ask
 * before Linux 6.7 has PAGEMAP_SCAN. Plain C. */
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGEMAP_PAGE_BYTES 4096u
#define ENTRY_PRESENT (1ull << 63)
#define ENTRY_SWAPPED (1ull << 62)
#define ENTRY_WRITTEN (1ull << 55) /* since its mark was taken off: soft-dirty */
#define ENTRY_GUARD (1ull << 58)   /* from 6.15 on; it counts as swapped, and is no page */
/* Of a page that is present; reads as 0 without CAP_SYS_ADMIN. */
#define ENTRY_FRAME (ENTRY_WRITTEN - 1)

/* Does a page of plain anonymous memory hold anything but zeros, as far as CRIU asks? `zero_frame` is that of
 * the kernel's page of zeros; 0 when it is not known, and then no page that is present is known to be
 * another. */
static inline int HasContent(uint64_t entry, uint64_t zero_frame) {
  if ((entry & ENTRY_GUARD) != 0) return 0;
  if ((entry & ENTRY_SWAPPED) != 0) return 1;
  return (entry & ENTRY_PRESENT) != 0 && zero_frame != 0 && (entry & ENTRY_FRAME) != zero_frame;
}

/* The frame of the kernel's page of zeros; 0 where nobody tells. Asks the kernel each time. */
static inline uint64_t ReadZeroFrame(void) {
  void* page = mmap(0, PAGEMAP_PAGE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 0;
  (void)*(const volatile char*)page;
  const int pagemap = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  uint64_t entry = 0;
  const uint64_t at = (uint64_t)(uintptr_t)page / PAGEMAP_PAGE_BYTES * sizeof entry;
  const int read = pagemap >= 0 && syscall(SYS_pread64, pagemap, &entry, sizeof entry, at) == sizeof entry;
  if (pagemap >= 0) close(pagemap);
  munmap(page, PAGEMAP_PAGE_BYTES);
  return read && (entry & ENTRY_PRESENT) != 0 ? entry & ENTRY_FRAME : 0;
}
