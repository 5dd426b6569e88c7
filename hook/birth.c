#include "hook/birth.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/rseq.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A process enters a PID namespace only through its children, so the copy is the template's grandchild. The
 * one in between, the middleman, is made by vfork: it costs no second copy of the page tables. It runs in the
 * template's memory while the template waits, so what it leaves behind there (results, the parent's side of
 * fork's handlers) is what the template finds; everything the two tell each other is in here, outside their
 * common stack frame. */
struct middleman {
  const struct rekindle_birth* birth;
  const char* directory;
  int namespaces; /* CLONE_NEW* to be entered */
  volatile pid_t copy;
  volatile int error;
  const char* volatile step;
};

enum { kNamespaceCount = 5 };
static const struct {
  const char* name;
  int flag;
} kNamespaces[kNamespaceCount] = {{"mnt", CLONE_NEWNS},
                                  {"ipc", CLONE_NEWIPC},
                                  {"uts", CLONE_NEWUTS},
                                  {"net", CLONE_NEWNET},
                                  {"cgroup", CLONE_NEWCGROUP}};

static int Fail(struct rekindle_birth* birth, const char* step, int error) {
  snprintf(birth->why, sizeof(birth->why), "%s: %s", step, strerror(error));
  return -1;
}

/* The PID, in our namespace, of the process behind a pidfd; 0 when it has none. */
static pid_t ProcessBehind(int pidfd) {
  char name[64], text[512];
  snprintf(name, sizeof(name), "/proc/self/fdinfo/%d", pidfd);
  int info = open(name, O_RDONLY | O_CLOEXEC);
  if (info < 0) return 0;
  ssize_t length = read(info, text, sizeof(text) - 1);
  close(info);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* pid = strstr(text, "\nPid:");
  long value = pid == NULL ? 0 : strtol(pid + 5, NULL, 10);
  return value > 0 ? (pid_t)value : 0;
}

/* Which of its namespaces are not ours, or -1. */
static int OtherNamespaces(pid_t process) {
  int flags = 0;
  for (int i = 0; i < kNamespaceCount; ++i) {
    char own[64], other[64];
    struct stat ours, theirs;
    snprintf(own, sizeof(own), "/proc/self/ns/%s", kNamespaces[i].name);
    snprintf(other, sizeof(other), "/proc/%d/ns/%s", process, kNamespaces[i].name);
    if (stat(own, &ours) < 0 || stat(other, &theirs) < 0) return -1;
    if (ours.st_ino != theirs.st_ino) flags |= kNamespaces[i].flag;
  }
  return flags;
}

/* In the middleman: returns in the copy alone. */
static __attribute__((noinline)) void MakeCopy(struct middleman* shared) {
  const struct rekindle_birth* birth = shared->birth;
  shared->step = "writing cgroup.procs";
  for (size_t i = 0; i < birth->cgroup_count; ++i) {
    if (write(birth->cgroups[i], "0", 1) != 1) goto failed;
  }
  shared->step = "entering the sandbox's namespaces";
  if (shared->namespaces != 0 && setns(birth->sandbox, shared->namespaces) < 0) goto failed;
  /* A new mount namespace sets it to the root. */
  shared->step = "changing to the working directory in the sandbox";
  if ((shared->namespaces & CLONE_NEWNS) != 0 && chdir(shared->directory) < 0) goto failed;
  shared->step = "fork";
  pid_t copy = fork();
  if (copy == 0) return;
  if (copy < 0) goto failed;
  shared->copy = copy;
  _exit(0);
failed:
  shared->error = errno;
  _exit(1);
}

/* The middleman's PID, or -1; 0 in the copy. Nothing of this frame may be changed by the middleman. */
static __attribute__((noinline)) pid_t StartMiddleman(struct middleman* shared) {
  pid_t pid = vfork();
  if (pid != 0) return pid;
  MakeCopy(shared);
  return 0;
}

/* A libc before 2.35 has neither these nor a registration of its own. */
#ifdef RSEQ_SIG
#pragma weak __rseq_size
#pragma weak __rseq_offset
#endif

/* The kernel forgets a process's restartable sequences at vfork, so the copy has none, while its libc
 * believes that it has. */
static void RegisterRestartableSequences(void) {
#ifdef RSEQ_SIG
  enum { kOldestSize = 32 };
  if (&__rseq_size == NULL || &__rseq_offset == NULL || __rseq_size == 0) return;
  char* area = (char*)__builtin_thread_pointer() + __rseq_offset;
  uint32_t size =
      __rseq_size <= kOldestSize ? kOldestSize : (__rseq_size + kOldestSize - 1) / kOldestSize * kOldestSize;
  syscall(SYS_rseq, area, size, 0, RSEQ_SIG);
#endif
}

int rekindle_give_birth(struct rekindle_birth* birth) {
  char directory[PATH_MAX];
  if (getcwd(directory, sizeof(directory)) == NULL || directory[0] != '/') {
    return Fail(birth, "asking for the working directory", errno == 0 ? ENOENT : errno);
  }
  pid_t init = ProcessBehind(birth->sandbox);
  if (init == 0) return Fail(birth, "looking at the sandbox's init (descriptor 0 of the request)", ESRCH);
  struct middleman shared = {.birth = birth, .directory = directory, .namespaces = OtherNamespaces(init)};
  if (shared.namespaces < 0) return Fail(birth, "comparing namespaces with the sandbox's init", errno);
  int own_namespace = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
  if (own_namespace < 0) return Fail(birth, "opening /proc/self/ns/pid", errno);

  /* A signal's handler in the middleman would run in the template's memory as another process. */
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  int result = 1;
  if (setns(birth->sandbox, CLONE_NEWPID) < 0) {
    result = Fail(birth, "entering the sandbox's PID namespace", errno);
  } else {
    pid_t pid = StartMiddleman(&shared);
    int error = errno;
    if (pid == 0) {
      RegisterRestartableSequences();
      setsid();
      close(own_namespace);
      sigprocmask(SIG_SETMASK, &before, NULL);
      return 0;
    }
    if (pid < 0) {
      result = Fail(birth, "vfork", error);
    } else {
      /* Nothing to wait for where the program ignores SIGCHLD. */
      while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR) {
      }
      birth->pid = shared.copy;
      if (shared.copy == 0) result = Fail(birth, shared.step, shared.error == 0 ? EOWNERDEAD : shared.error);
    }
    /* Should it fail: each request says anew where its copy goes, and nothing else here makes processes. */
    setns(own_namespace, CLONE_NEWPID);
  }
  close(own_namespace);
  sigprocmask(SIG_SETMASK, &before, NULL);
  return result;
}
