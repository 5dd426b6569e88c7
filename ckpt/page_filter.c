// Part of rekindle-criu-preload.so: takes the bulk of the job's memory out of CRIU's hands.
//
// CRIU asks the kernel, area by area, which pages of a task are in use (PAGEMAP_SCAN; before Linux 6.7 it
// reads /proc/PID/pagemap) and then moves each of them through pipes, alone. Here its question is answered
// without the pages of plain private anonymous memory; their addresses go to Rekindle instead (socket
// "page-filter.sock" in the working directory), which copies them straight out of the frozen task from
// several threads while CRIU goes on. What CRIU never heard of is missing from its pagemap, and Rekindle puts
// it in again.
//
// Whatever is unusual is left to CRIU: then the pages come through its pipes. No part of the C library is
// linked, so that it fits the library CRIU runs with, whichever that is.
#define _GNU_SOURCE
#include "ckpt/page_filter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "ckpt/pagemap_entry.h"
#include "ckpt/pagemap_scan.h"
#include "criu/enter_mounts.h"
#include "criu/open_mode.h"

// Smaller areas are not worth a second look.
#define LEAST_AREA_BYTES (64u << 10)
// A process has as many, unless vm.max_map_count was raised; what is beyond them goes through CRIU's pipes.
#define MOST_AREAS 65536
// CRIU takes as many at once (PAGE_REGIONS_MAX_NR); memory of which every second page is in use has more.
#define MOST_REGIONS 32768

struct Area {
  uint64_t start, end;
};

static struct Area areas[MOST_AREAS];  // of the task `areas_pid`, ascending
static size_t area_count;
static uint64_t areas_pid;
static int has_requests;  // for the kernel to read or write while it stands still
static int rekindle = -1;
static int refused;

static int Connect(void) {
  if (rekindle >= 0) return 1;
  if (refused) return 0;
  struct sockaddr_un address;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, PAGE_FILTER_SOCKET, sizeof PAGE_FILTER_SOCKET);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (struct sockaddr*)&address, sizeof address) == 0) {
    rekindle = fd;
    return 1;
  }
  if (fd >= 0) close(fd);
  refused = 1;
  return 0;
}

// The number at the start of `text` in the given base; moves `*text` behind it.
static uint64_t Number(const char** text, unsigned base) {
  uint64_t value = 0;
  for (;; ++*text) {
    char c = **text;
    unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                                            : 99;
    if (digit >= base) return value;
    value = value * base + digit;
  }
}

static char* Append(char* to, const char* text) {
  while (*text) *to++ = *text++;
  *to = 0;
  return to;
}

static char* AppendNumber(char* to, uint64_t value) {
  char digits[24];
  int n = 0;
  do {
    digits[n++] = (char)('0' + value % 10);
  } while ((value /= 10) != 0);
  while (n > 0) *to++ = digits[--n];
  *to = 0;
  return to;
}

// Whose `file` in /proc is this ("/pagemap"; "": the process's folder)? 0 when it is none.
static uint64_t PidOfProcFile(int fd, const char* file) {
  char path[64], target[64];
  AppendNumber(Append(path, "/proc/self/fd/"), (uint64_t)fd);
  ssize_t n = readlink(path, target, sizeof target - 1);
  if (n <= 6) return 0;
  target[n] = 0;
  const char* at = target;
  for (const char* prefix = "/proc/"; *prefix; ++prefix, ++at) {
    if (*at != *prefix) return 0;
  }
  uint64_t pid = Number(&at, 10);
  for (const char* rest = file; *rest; ++rest, ++at) {
    if (*at != *rest) return 0;
  }
  return *at == 0 ? pid : 0;
}

// A line of /proc/PID/maps: "start-end rwxp offset device inode   name". Takes areas that are private,
// anonymous, readable and not executable (CRIU runs its own system calls from executable memory), and no
// stack.
static void TakeLine(const char* line) {
  struct Area area;
  area.start = Number(&line, 16);
  if (*line++ != '-') return;
  area.end = Number(&line, 16);
  if (*line++ != ' ') return;
  const int plain = line[0] == 'r' && line[2] == '-' && line[3] == 'p';
  for (int field = 0; field < 3; ++field) {  // permissions, offset, device
    while (*line && *line != ' ') ++line;
    while (*line == ' ') ++line;
  }
  const uint64_t inode = Number(&line, 10);
  while (*line == ' ') ++line;
  if (memcmp(line, "/[aio]", 6) == 0) has_requests = 1;
  if (!plain || inode != 0) return;
  if (*line && memcmp(line, "[heap]", 7) != 0 && memcmp(line, "[anon:", 6) != 0) return;
  if (area.end - area.start < LEAST_AREA_BYTES || area_count == MOST_AREAS) return;
  areas[area_count++] = area;
}

static int ReadAreas(uint64_t pid) {
  if (areas_pid == pid) return 1;
  char path[64];
  Append(AppendNumber(Append(path, "/proc/"), pid), "/maps");
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  area_count = 0;
  has_requests = 0;
  static char buffer[65536];
  static char line[512];
  size_t length = 0;
  ssize_t n;
  while ((n = read(fd, buffer, sizeof buffer)) > 0) {
    for (ssize_t i = 0; i < n; ++i) {
      if (buffer[i] != '\n') {
        // A name longer than this belongs to a file; the fields that count come first.
        if (length + 8 < sizeof line) line[length++] = buffer[i];
        continue;
      }
      memset(line + length, 0, 8);
      TakeLine(line);
      length = 0;
    }
  }
  close(fd);
  areas_pid = n == 0 ? pid : 0;
  return n == 0;
}

// The first area that ends behind `address`. CRIU asks about each area of a task by itself: to look from the
// beginning each time would be the square of their number, while the job stands still.
static size_t FirstAreaBehind(uint64_t address) {
  size_t low = 0, high = area_count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (areas[middle].end <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static int SendAll(const void* data, size_t bytes) {
  const char* at = data;
  while (bytes > 0) {
    ssize_t n = send(rekindle, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return 0;
    at += n;
    bytes -= (size_t)n;
  }
  return 1;
}

static void HangUp(void) {
  // Rekindle has gone: CRIU will notice at its own socket.
  close(rekindle);
  rekindle = -1;
  refused = 1;
}

// The question that CRIU asks before it dumps pages; others are none of our business.
static int IsAboutPages(const struct ScanArguments* scan) {
  return scan->category_inverted == PAGES_WITHOUT_CONTENT && scan->category_mask == PAGES_WITHOUT_CONTENT &&
         scan->category_anyof_mask == PAGES_WITH_CONTENT;
}

// Splits the kernel's answer into what CRIU is told and what Rekindle copies. Returns the number of regions
// left.
static long Hide(int fd, struct ScanArguments* scan, long count) {
  static struct PageRegion kept[MOST_REGIONS];
  static struct PageFilterRange taken[MOST_REGIONS];
  if (count > MOST_REGIONS || !IsAboutPages(scan)) return count;
  uint64_t pid = PidOfProcFile(fd, "/pagemap");
  if (pid == 0 || !Connect() || !ReadAreas(pid) || area_count == 0) return count;

  struct PageRegion* regions = (struct PageRegion*)(uintptr_t)scan->vec;
  size_t kept_count = 0, taken_count = 0, low = FirstAreaBehind(scan->start);
  for (long i = 0; i < count; ++i) {
    uint64_t at = regions[i].start, end = regions[i].end;
    if ((regions[i].categories & IS_GUARD) != 0) {  // CRIU passes over it
      if (kept_count == MOST_REGIONS) return count;
      kept[kept_count++] = regions[i];
      continue;
    }
    while (low < area_count && areas[low].end <= at) ++low;
    for (size_t a = low; at < end; ++a) {
      uint64_t inside = a < area_count && areas[a].start < end ? areas[a].start : end;
      if (inside > at) {
        if (kept_count == MOST_REGIONS) return count;
        kept[kept_count].start = at;
        kept[kept_count].end = inside;
        kept[kept_count++].categories = regions[i].categories;
        at = inside;
      }
      if (at >= end) break;
      uint64_t until = areas[a].end < end ? areas[a].end : end;
      if (until <= at) continue;
      if (taken_count == MOST_REGIONS) return count;
      taken[taken_count].pid = pid;
      taken[taken_count].start = at;
      taken[taken_count++].end = until;
      at = until;
    }
  }
  if (taken_count == 0 || kept_count > scan->vec_len) return count;
  // "No regions" would mean that the walk is over.
  if (kept_count == 0 && scan->walk_end < scan->end) return count;
  if (!SendAll(taken, taken_count * sizeof taken[0])) {
    HangUp();
    return count;
  }
  memcpy(regions, kept, kept_count * sizeof kept[0]);
  return (long)kept_count;
}

// What CRIU has read of a task's pagemap, of the pages from `start` on: those that Rekindle copies become
// ones that are not there.
static void HideEntries(uint64_t pid, uint64_t start, uint64_t* entries, size_t count) {
  static struct PageFilterRange taken[256];
  static uint64_t zero;
  if (zero == 0) zero = ReadZeroFrame();
  if (zero == 0 || !Connect() || !ReadAreas(pid)) return;
  const uint64_t end = start + count * PAGEMAP_PAGE_BYTES;
  size_t area = FirstAreaBehind(start);
  uint64_t at = start;
  while (area < area_count && areas[area].start < end) {
    size_t n = 0;
    for (; area < area_count && areas[area].start < end && n < sizeof taken / sizeof taken[0]; ++area) {
      if (at < areas[area].start) at = areas[area].start;
      const uint64_t until = areas[area].end < end ? areas[area].end : end;
      while (at < until && n < sizeof taken / sizeof taken[0]) {
        while (at < until && !HasContent(entries[(at - start) / PAGEMAP_PAGE_BYTES], zero))
          at += PAGEMAP_PAGE_BYTES;
        if (at >= until) break;
        taken[n].pid = pid;
        taken[n].start = at;
        while (at < until && HasContent(entries[(at - start) / PAGEMAP_PAGE_BYTES], zero))
          at += PAGEMAP_PAGE_BYTES;
        taken[n++].end = at;
      }
      if (at < until) break;  // no room: the rest of it comes next
    }
    if (n == 0) return;
    if (!SendAll(taken, n * sizeof taken[0])) {
      HangUp();
      return;
    }
    for (size_t i = 0; i < n; ++i) {
      memset(entries + (taken[i].start - start) / PAGEMAP_PAGE_BYTES, 0,
             (taken[i].end - taken[i].start) / PAGEMAP_PAGE_BYTES * sizeof entries[0]);
    }
  }
}

static void TellAreas(uint64_t pid) {
  static struct PageFilterRange told[MOST_AREAS];
  if (pid == 0 || !Connect() || !ReadAreas(pid) || has_requests) return;
  for (size_t i = 0; i < area_count; ++i) {
    told[i].pid = pid;
    told[i].start = areas[i].start;
    told[i].end = areas[i].end;
    told[i].ahead = 1;
  }
  if (!SendAll(told, area_count * sizeof told[0])) HangUp();
}

static int Open(int at, const char* path, int flags, mode_t mode) {
  int outside;
  if (OpenedOutside(path, flags, &outside)) return outside;
  // By this name CRIU opens it in the folder of a task, and once all tasks stand still.
  static const char kAreas[] = "smaps";
  if (at >= 0 && strcmp(path, kAreas) == 0) {
    const int error = errno;
    TellAreas(PidOfProcFile(at, ""));
    errno = error;
  }
  return (int)syscall(SYS_openat, at, path, flags, mode);
}

OPENS_BY(Open)

int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  long result = syscall(SYS_ioctl, fd, request, argument);
  if (request != PAGEMAP_SCAN_REQUEST || result <= 0) return (int)result;
  int error = errno;
  result = Hide(fd, argument, result);
  errno = error;
  return (int)result;
}

ssize_t pread64(int fd, void* to, size_t bytes, off64_t offset) {
  const ssize_t n = syscall(SYS_pread64, fd, to, bytes, offset);
  // Of one page CRIU asks for reasons of its own, of its own memory too.
  if (n <= (ssize_t)sizeof(uint64_t) || n % (ssize_t)sizeof(uint64_t) != 0 ||
      offset % (off64_t)sizeof(uint64_t) != 0)
    return n;
  const int error = errno;
  const uint64_t pid = PidOfProcFile(fd, "/pagemap");
  if (pid != 0) {
    HideEntries(pid, (uint64_t)offset / sizeof(uint64_t) * PAGEMAP_PAGE_BYTES, to,
                (size_t)n / sizeof(uint64_t));
  }
  errno = error;
  return n;
}

ssize_t pread(int fd, void* to, size_t bytes, off_t offset) { return pread64(fd, to, bytes, offset); }
