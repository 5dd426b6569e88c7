// rekindle-gpu-keeper: has the threads of processes stand still, and runs those that Rekindle names, at the
// other end of descriptor 3 (gpu_state/thread_keeper.h). When it ends, for whatever reason, all go on. One
// thread and no more than system calls: it traces others.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu_state/thread_keeper.h"

// For a thread to come out of the kernel.
#define MAY_TAKE_MS 2000
#define LOOK_AGAIN_MS 1

static long long Milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

// -1: gone.
static int TracerOf(int pid, int id) {
  char path[96], line[128];
  snprintf(path, sizeof path, "/proc/%d/task/%d/status", pid, id);
  FILE* file = fopen(path, "re");
  if (!file) return -1;
  int tracer = -1;
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "TracerPid: %d", &tracer) == 1) break;
  }
  fclose(file);
  return tracer;
}

// Seizes what is not seized yet; how many these are, or -1 and errno.
static int SeizeNew(int pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR* tasks = opendir(path);
  if (!tasks) return -1;
  int seized = 0, error = 0;
  for (struct dirent* entry; (entry = readdir(tasks));) {
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    const pid_t id = atoi(entry->d_name);
    if (ptrace(PTRACE_SEIZE, id, 0, PTRACE_O_TRACESYSGOOD) == 0) {
      ptrace(PTRACE_INTERRUPT, id, 0, 0);
      ++seized;
      continue;
    }
    if (errno == ESRCH) continue;
    // Ours already answer EPERM, and so do somebody else's.
    if (TracerOf(pid, id) != getpid()) error = EPERM;
  }
  closedir(tasks);
  errno = error;
  return error ? -1 : seized;
}

static int Hold(int pid) {
  const long long end = Milliseconds() + MAY_TAKE_MS;
  for (;;) {
    // Threads that run may make others.
    int waiting = SeizeNew(pid);
    if (waiting < 0) return errno;
    if (waiting == 0) return 0;
    while (waiting > 0) {
      int status = 0;
      const pid_t id = waitpid(-1, &status, __WALL | WNOHANG);
      if (id < 0) return errno == ECHILD ? ESRCH : errno;
      if (id == 0) {
        if (Milliseconds() > end) return ETIMEDOUT;
        poll(0, 0, LOOK_AGAIN_MS);
      } else if (!WIFSTOPPED(status) || status >> 16 == PTRACE_EVENT_STOP) {
        --waiting;
      } else {
        ptrace(PTRACE_CONT, id, 0, status >> 16 == 0 ? WSTOPSIG(status) : 0);
      }
    }
  }
}

int main(void) {
  // Rekindle tells when it is over; a terminal's Ctrl-C does not.
  for (int number = 1; number < 32; ++number) {
    if (number != SIGCHLD && number != SIGSEGV && number != SIGBUS) signal(number, SIG_IGN);
  }
  return ServeKeeper(KEEPER_SOCKET, PTRACE_O_TRACESYSGOOD, Hold) == 0 ? 0 : 1;
}
