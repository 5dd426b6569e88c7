// Part of rekindle-criu-preload.so. Linked against no part of the C library, as page_filter.c.
#define _GNU_SOURCE
#include "ckpt/extra_names.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu/run_name.h"

#if defined(__x86_64__) || defined(__aarch64__)

// CRIU also removes images that it has given up, whose name is a null pointer.
static size_t Length(const char* text) {
  size_t length = 0;
  while (text != NULL && text[length] != 0) ++length;
  return length;
}

// Does the path end with CRIU's name for it, "/link_remap.7"?
static int IsExtraName(const char* path, size_t length) {
  static const char kName[] = "/" EXTRA_NAME;
  const size_t name_length = sizeof kName - 1;
  size_t at = length;
  while (at > 0 && path[at - 1] >= '0' && path[at - 1] <= '9') --at;
  if (at == length || at < name_length) return 0;
  for (size_t i = 0; i < name_length; ++i) {
    if (path[at - name_length + i] != kName[i]) return 0;
  }
  return 1;
}

// The name on disk and, behind its end, room for one byte; its length. 0: `path` is none of CRIU's names, or
// its own is as good.
static size_t NameOnDisk(const char* path, char* on_disk) {
  const char* run = getenv(CRIU_RUN);
  const size_t length = Length(path), run_length = run == NULL ? 0 : Length(run);
  if (run_length == 0 || length + 1 + run_length + 2 > PATH_MAX || !IsExtraName(path, length)) return 0;
  for (size_t i = 0; i < length; ++i) on_disk[i] = path[i];
  on_disk[length] = '.';
  for (size_t i = 0; i <= run_length; ++i) on_disk[length + 1 + i] = run[i];
  return length + 1 + run_length;
}

// If that fails, nobody removes the name should CRIU be killed; no reason to fail.
static void WriteDown(char* name, size_t length) {
  const long list =
      syscall(SYS_openat, AT_FDCWD, EXTRA_NAMES_LIST, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (list < 0) return;
  name[length] = '\n';
  const long written = syscall(SYS_write, list, name, length + 1);
  (void)written;
  name[length] = 0;
  syscall(SYS_close, list);
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  char on_disk[PATH_MAX];
  const size_t length = NameOnDisk(to, on_disk);
  if (length > 0) {
    const int error = errno;
    WriteDown(on_disk, length);
    errno = error;
    to = on_disk;
  }
  int result = 0;
  if ((flags & AT_EMPTY_PATH) != 0 && from[0] == 0 && (length > 0 || IsExtraName(to, Length(to))) &&
      NameNameless(from_folder, to_folder, to, &result)) {
    return result;
  }
  return syscall(SYS_linkat, from_folder, from, to_folder, to, flags) == 0 ? 0 : -1;
}

int unlinkat(int folder, const char* name, int flags) {
  char on_disk[PATH_MAX];
  return syscall(SYS_unlinkat, folder, NameOnDisk(name, on_disk) > 0 ? on_disk : name, flags) == 0 ? 0 : -1;
}

#endif
