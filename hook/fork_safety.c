#include "hook/fork_safety.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hook/own_files.h"

struct findings {
  bool unsafe;
  bool nvidia_device;
  bool libcuda;
  bool openblas, openmp, mkl;
  char* why;
  size_t why_size;
};

/* Only the first finding is kept. */
__attribute__((format(printf, 2, 3))) static void Refuse(struct findings* found, const char* format, ...) {
  if (found->unsafe) return;
  found->unsafe = true;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(found->why, found->why_size, format, arguments);
  va_end(arguments);
}

static bool StartsWith(const char* text, const char* prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

static void CheckMapping(const char* line, struct findings* found) {
  char permissions[5] = "";
  int path_at = 0;
  if (sscanf(line, "%*x-%*x %4s %*x %*s %*u %n", permissions, &path_at) != 1 || path_at == 0) return;
  const char* path = line + path_at;
  if (strstr(path, "/libcuda.so") != NULL) found->libcuda = true;
  if (strstr(path, "openblas") != NULL) found->openblas = true;
  if (strstr(path, "/libgomp") != NULL || strstr(path, "/libiomp") != NULL ||
      strstr(path, "/libomp") != NULL) {
    found->openmp = true;
  }
  if (strstr(path, "/libmkl_") != NULL) found->mkl = true;
  if (permissions[1] != 'w' || permissions[3] != 's') return;
  int length = (int)strcspn(path, "\n");
  if (StartsWith(path, "/dev/zero (deleted)")) {
    Refuse(found, "it has anonymous shared memory: a copy would write into the template's");
  } else if (StartsWith(path, "/[aio]")) {
    Refuse(found, "it has an asynchronous I/O context (io_setup), which a copy does not get");
  } else {
    Refuse(found, "%.*s is mapped shared and writable: a copy would write into the template's memory", length,
           path);
  }
}

static void CheckMappings(struct findings* found) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == NULL) {
    Refuse(found, "/proc/self/maps can't be opened (%s)", strerror(errno));
    return;
  }
  char* line = NULL;
  size_t room = 0;
  while (getline(&line, &room, maps) > 0) CheckMapping(line, found);
  free(line);
  fclose(maps);
}

static void CheckThreads(struct findings* found) {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == NULL) {
    Refuse(found, "/proc/self/task can't be opened (%s)", strerror(errno));
    return;
  }
  int threads = 0;
  for (struct dirent* entry; (entry = readdir(tasks)) != NULL;) threads += entry->d_name[0] != '.';
  closedir(tasks);
  if (threads == 1) return;
  char cure[160] = "";
  if (found->openblas || found->openmp || found->mkl) {
    snprintf(cure, sizeof(cure), ". It has libraries that start threads: set%s%s%s before it starts",
             found->openblas ? " OPENBLAS_NUM_THREADS=1" : "", found->openmp ? " OMP_NUM_THREADS=1" : "",
             found->mkl ? " MKL_NUM_THREADS=1" : "");
  }
  Refuse(found, "it has %d threads, of which a copy would get one%s", threads, cure);
}

static void CheckChildren(struct findings* found) {
  siginfo_t info;
  if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0) {
    Refuse(found, "it has child processes, which a copy does not get");
  }
}

static void CheckTimers(struct findings* found) {
  static const char* const kNames[] = {"ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"};
  static const int kTimers[] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};
  for (size_t i = 0; i < sizeof(kTimers) / sizeof(kTimers[0]); ++i) {
    struct itimerval timer;
    if (getitimer((__itimer_which_t)kTimers[i], &timer) == 0 &&
        (timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0)) {
      Refuse(found, "a timer runs (%s), which a copy does not get", kNames[i]);
    }
  }
  FILE* timers = fopen("/proc/self/timers", "re"); /* not there: the kernel has no POSIX timers to show */
  if (timers == NULL) return;
  if (fgetc(timers) != EOF) Refuse(found, "it has a POSIX timer (timer_create), which a copy does not get");
  fclose(timers);
}

/* Record locks, flock and leases are all in the descriptor's fdinfo. */
static void CheckLocks(int fd, const char* path, struct findings* found) {
  char name[64], text[4096];
  snprintf(name, sizeof(name), "/proc/self/fdinfo/%d", fd);
  int info = open(name, O_RDONLY | O_CLOEXEC);
  ssize_t length = info < 0 ? -1 : read(info, text, sizeof(text) - 1);
  if (length < 0) Refuse(found, "%s can't be read (%s)", name, strerror(errno));
  if (info >= 0) close(info);
  if (length < 0) return;
  text[length] = '\0';
  if (strstr(text, "\nlock:") != NULL) Refuse(found, "it holds a lock on %s (descriptor %d)", path, fd);
}

static void CheckFile(int fd, const char* path, const struct stat* status, struct findings* found) {
  enum { kMessageQueues = 0x19800202 };
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0) return;
  struct statfs file_system;
  if (fstatfs(fd, &file_system) == 0 && file_system.f_type == kMessageQueues) {
    Refuse(found, "descriptor %d is a message queue (%s)", fd, path);
    return;
  }
  CheckLocks(fd, path, found);
  if (status->st_nlink == 0 && (flags & O_ACCMODE) != O_RDONLY) {
    Refuse(found, "%s (descriptor %d) is open for writing: a copy would write into the template's file", path,
           fd);
    return;
  }
  if (found->unsafe || fd == STDOUT_FILENO || fd == STDERR_FILENO) return;
  char self[PATH_MAX];
  snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
  int again = open(self, rekindle_reopen_flags(flags));
  if (again < 0) {
    Refuse(found, "%s (descriptor %d) can't be opened again for a copy (%s)", path, fd, strerror(errno));
  } else {
    close(again);
  }
}

/* By number: a terminal that hung up no longer answers isatty(). */
static bool IsTerminal(unsigned major_number) {
  return major_number == 4 || major_number == 5 || (major_number >= 136 && major_number <= 143);
}

static bool IsSharableDevice(int fd, dev_t device) {
  unsigned minor_number = minor(device);
  if (major(device) == 1) { /* null, zero, full, random, urandom */
    return minor_number == 3 || minor_number == 5 || (minor_number >= 7 && minor_number <= 9);
  }
  return fd <= STDERR_FILENO && IsTerminal(major(device));
}

static void CheckDescriptor(int fd, struct findings* found) {
  char name[64], path[PATH_MAX];
  struct stat status;
  snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
  ssize_t length = readlink(name, path, sizeof(path) - 1);
  if (length < 0 || fstat(fd, &status) < 0) {
    Refuse(found, "descriptor %d can't be looked at (%s)", fd, strerror(errno));
    return;
  }
  path[length] = '\0';
  if (StartsWith(path, "/dev/nvidia")) {
    found->nvidia_device = true;
  } else if (path[0] == '/' && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) {
    CheckFile(fd, path, &status, found);
  } else if (S_ISCHR(status.st_mode)) {
    if (!IsSharableDevice(fd, status.st_rdev)) {
      Refuse(found, "descriptor %d is the device %s, which copies can't share", fd, path);
    }
  } else if (S_ISSOCK(status.st_mode)) {
    Refuse(found, "descriptor %d is a socket: close it before ready(), open it again after the restore", fd);
  } else if (S_ISFIFO(status.st_mode)) {
    if (fd > STDERR_FILENO) {
      Refuse(found, "descriptor %d is a pipe: close it before ready(), open it again after the restore", fd);
    }
  } else {
    Refuse(found, "descriptor %d is %s, which copies can't share", fd, path);
  }
}

static void CheckDescriptors(const int* ours, size_t our_count, struct findings* found) {
  DIR* open_files = opendir("/proc/self/fd");
  if (open_files == NULL) {
    Refuse(found, "/proc/self/fd can't be opened (%s)", strerror(errno));
    return;
  }
  for (struct dirent* entry; (entry = readdir(open_files)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    int fd = atoi(entry->d_name);
    bool own = fd == dirfd(open_files);
    for (size_t i = 0; i < our_count; ++i) own = own || fd == ours[i];
    if (!own) CheckDescriptor(fd, found);
  }
  closedir(open_files);
}

static bool Check(bool with_mappings, const int* ours, size_t our_count, char* why, size_t why_size) {
  char mapping_why[PATH_MAX + 256], descriptor_why[PATH_MAX + 256];
  struct findings mappings = {.why = mapping_why, .why_size = sizeof(mapping_why)};
  struct findings descriptors = {.why = descriptor_why, .why_size = sizeof(descriptor_why)};
  if (with_mappings) CheckMappings(&mappings);
  CheckDescriptors(ours, our_count, &descriptors);

  /* Threads and GPUs explain more than the mappings and descriptors that come with them. */
  struct findings found = mappings;
  found.unsafe = false;
  found.why = why;
  found.why_size = why_size;
  if (descriptors.nvidia_device) {
    Refuse(&found, "it uses a GPU (%s): device memory can't be copied by fork",
           mappings.libcuda ? "CUDA" : "an NVIDIA device is open");
  }
  CheckThreads(&found);
  CheckChildren(&found);
  CheckTimers(&found);
  if (descriptors.unsafe) Refuse(&found, "%s", descriptor_why);
  if (mappings.unsafe) Refuse(&found, "%s", mapping_why);
  return !found.unsafe;
}

bool rekindle_fork_is_safe(const int* ours, size_t our_count, char* why, size_t why_size) {
  return Check(true, ours, our_count, why, why_size);
}

bool rekindle_fork_is_still_safe(const int* ours, size_t our_count, char* why, size_t why_size) {
  return Check(false, ours, our_count, why, why_size);
}
