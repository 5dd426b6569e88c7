// Part of rekindle-criu-preload.so: shared memory whose name is gone (shm_unlink) is left to Rekindle.
//
// CRIU copies the content of a file without a name into its images byte by byte, while the job stands still,
// up to a limit. Programs that exchange tensors between processes have gigabytes of that. Here CRIU takes
// such a file of /dev/shm for one that has another name: it then asks for an extra one (extra_names.h) and
// copies nothing. In place of a link, which a file without a name can't get, it gets a symbolic link to a
// descriptor of its own process, by which Rekindle reads the content (ckpt/lost_names.cc), as it reads other
// memory.
//
// Linked against no part of the C library, as page_filter.c.
#define _GNU_SOURCE
#include "ckpt/nameless_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/extra_names.h"

#if defined(__x86_64__) || defined(__aarch64__)

#define HIGH_DESCRIPTOR 1024

static long Stat(int fd, struct stat* info) { return syscall(SYS_fstat, fd, info); }

static int IsNameless(const struct stat* info) {
  struct stat folder;
  return S_ISREG(info->st_mode) && info->st_nlink == 0 && getenv(TAKES_NAMELESS_MEMORY) != NULL &&
         syscall(SYS_newfstatat, AT_FDCWD, "/dev/shm", &folder, 0) == 0 && folder.st_dev == info->st_dev;
}

// struct stat and struct stat64 are the same here. Under both names, whichever CRIU was built with.
static int StatAsCriuSeesIt(int fd, struct stat* info) {
  const int error = errno;
  if (Stat(fd, info) != 0) return -1;
  if (IsNameless(info)) info->st_nlink = 1;
  errno = error;
  return 0;
}

int fstat(int fd, struct stat* info) { return StatAsCriuSeesIt(fd, info); }
int fstat64(int fd, struct stat64* info) { return StatAsCriuSeesIt(fd, (struct stat*)info); }

static char* PutNumber(char* at, unsigned long number) {
  char digits[24];
  int count = 0;
  do {
    digits[count++] = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  while (count > 0) *at++ = digits[--count];
  return at;
}

static char* PutText(char* at, const char* text) {
  while (*text != 0) *at++ = *text++;
  return at;
}

int NameNameless(int file, int folder, const char* name, int* result) {
  struct stat info;
  if (Stat(file, &info) != 0 || !IsNameless(&info)) return 0;
  *result = -1;
  // It stays open until CRIU ends, which is after the content has been read.
  long kept = syscall(SYS_fcntl, file, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
  if (kept < 0) kept = syscall(SYS_fcntl, file, F_DUPFD_CLOEXEC, 0);
  if (kept < 0) return 1;
  char target[80];
  char* end = PutText(target, "/proc/");
  end = PutText(PutNumber(end, (unsigned long)syscall(SYS_getpid)), "/fd/");
  *PutNumber(end, (unsigned long)kept) = 0;
  if (syscall(SYS_symlinkat, target, folder, name) == 0) *result = 0;
  return 1;
}

#endif
