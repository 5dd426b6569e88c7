// Part of rekindle-criu-preload.so and rekindle-criu-restore.so: CRIU works in the mounts of a container.
//
// It must be there, or it would take the container's mounts for some that the job has brought along. But
// whoever owns a container's files must not get code of his into CRIU, which has more rights than he: no
// loader's list (/etc/ld.so.preload), library or program of his. So CRIU is started outside, and goes inside
// when it is loaded with all of its libraries; its working directory stays the one outside. What it would run
// from then on is not run.
//
// Linked against no part of the C library, so that it fits the library CRIU runs with, whichever that is.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "criu/enter_mounts.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KNOWN_FOLDER "/run/"
#define KNOWN_NAME "criu.kdat"

RunInside run_inside;

static int entered, runs, knows;
// What CRIU knows of the kernel. It closes all descriptors when it begins.
static char known[1 << 16];
static ssize_t known_bytes;
static void* plugin;
static char plugin_name[256];

// Of glibc, where CRIU runs with that.
__attribute__((weak)) int __nss_configure_lookup(const char* database, const char* services);

// Else a name of a port or a protocol, as nftables looks for, has the container say which libraries to load.
static void LookNamesUpInFiles(void) {
  static const char* const kDatabases[] = {"passwd",   "group",     "initgroups", "shadow", "gshadow",
                                           "hosts",    "networks",  "protocols",  "rpc",    "services",
                                           "netgroup", "publickey", "aliases",    "ethers"};
  if (__nss_configure_lookup == NULL) return;
  for (size_t i = 0; i < sizeof kDatabases / sizeof *kDatabases; ++i)
    __nss_configure_lookup(kDatabases[i], "files");
}

static void* LoadOutside(const char* file, int mode) {
  void* (*const load)(const char*, int) = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  return load != NULL ? load(file, mode) : NULL;
}

static const char* NameIn(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

static int Open(int at, const char* path, int flags) { return (int)syscall(SYS_openat, at, path, flags, 0); }

static void ReadKnown(const char* path) {
  const int file = Open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  known_bytes = read(file, known, sizeof known);
  close(file);
}

__attribute__((constructor)) static void Enter(void) {
  const char* number = getenv(ENTERED_MOUNTS);
  const char* given = getenv(ENTERED_KNOWN);
  if (given != NULL || number != NULL) ReadKnown(given != NULL ? given : KNOWN_FOLDER KNOWN_NAME);
  knows = given != NULL && known_bytes > 0;
  if (number == NULL) return;
  runs = getenv(ENTERED_RUNS) != NULL;
  const int mounts = atoi(number);
  const int folder = Open(AT_FDCWD, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  LookNamesUpInFiles();
  const char* path = getenv(ENTERED_PLUGIN);
  if (path != NULL) {
    plugin = LoadOutside(path, RTLD_NOW);
    strncpy(plugin_name, NameIn(path), sizeof plugin_name - 1);  // CRIU writes over its environment
  }
  // Outside it would do its work on other files.
  if (folder < 0 || setns(mounts, CLONE_NEWNS) != 0 || fchdir(folder) != 0) _exit(127);
  close(folder);
  close(mounts);
  entered = 1;
  unsetenv(ENTERED_MOUNTS);  // a program that it runs is there already
}

// It believes that file's every word: not one of the container's. Where CRIU can't keep one there is none.
int OpenedOutside(const char* path, int flags, int* fd) {
  static const char kFolder[] = KNOWN_FOLDER, kName[] = KNOWN_NAME;
  if ((!entered && !knows) || strncmp(path, kFolder, sizeof kFolder - 1) != 0) return 0;
  const char* name = path + sizeof kFolder - 1;
  if (strncmp(name + (*name == '.'), kName, sizeof kName - 1) != 0) return 0;
  *fd = -1;
  errno = (flags & O_ACCMODE) != O_RDONLY ? EROFS : ENOENT;
  if (errno == EROFS || known_bytes <= 0) return 1;
  *fd = (int)syscall(SYS_memfd_create, kName, 0);
  if (*fd >= 0 && syscall(SYS_pwrite64, *fd, known, known_bytes, 0) != known_bytes) {
    close(*fd);
    *fd = -1;
  }
  return 1;
}

// No library of the container's.
void* dlopen(const char* file, int mode) {
  if (!entered) return LoadOutside(file, mode);
  return plugin != NULL && file != NULL && strcmp(NameIn(file), plugin_name) == 0 ? plugin : NULL;
}

int execvp(const char* file, char* const arguments[]) {
  if (!entered) return execvpe(file, arguments, environ);
  const int status = run_inside != NULL ? run_inside(file) : -1;
  if (status >= 0) _exit(status);
  if (runs) return execvpe(file, arguments, environ);
  errno = EACCES;
  return -1;
}
