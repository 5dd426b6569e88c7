// rekindle-gpu-keeper: has the threads of processes stand still, and runs those that Rekindle names, at the
// other end of descriptor 3 (gpu_state/thread_keeper.h), or watches them (thread_watch.h). When it ends, for
// whatever reason, all go on. One thread: it traces others.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu_state/thread_keeper.h"
#include "gpu_state/thread_watch.h"

// For a thread to come out of the kernel.
#define MAY_TAKE_MS 2000
#define LOOK_AGAIN_MS 1
// For one that nobody traces: whoever did has just let go of it, or it is not ours to trace.
#define MAY_NOT_MS 200
#define MOST_PROCESSES 4096

static long long Milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

struct Process {
  pid_t id;
  int now;  // since somebody has begun to speak to us
};
static struct Process held[MOST_PROCESSES];
static int held_count;

static int NoteHeld(pid_t id) {
  for (int i = 0; i < held_count; ++i) {
    if (held[i].id != id) continue;
    held[i].now = 1;
    return 0;
  }
  if (held_count == MOST_PROCESSES) return EMFILE;
  held[held_count].id = id;
  held[held_count++].now = 1;
  return 0;
}

static void NameOf(pid_t pid, char* name, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/comm", pid);
  *name = 0;
  FILE* file = fopen(path, "re");
  if (!file) return;
  if (!fgets(name, (int)size, file)) *name = 0;
  name[strcspn(name, "\n")] = 0;
  fclose(file);
}

static int may_not;  // nobody traces one, and we can't

// Seizes what is not seized yet; how many these are, or -1 and errno. EAGAIN: a watch has been told to let
// go.
static int SeizeNew(int pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR* tasks = opendir(path);
  if (!tasks) return -1;
  int seized = 0, error = 0;
  may_not = 0;
  for (struct dirent* entry; (entry = readdir(tasks));) {
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    const pid_t id = atoi(entry->d_name);
    if (ptrace(PTRACE_SEIZE, id, 0, PTRACE_O_TRACESYSGOOD) == 0) {
      ptrace(PTRACE_INTERRUPT, id, 0, 0);
      ++seized;
      continue;
    }
    if (errno == ESRCH) continue;
    // Ours already answer EPERM, and so do somebody else's, and those that we may not trace.
    const pid_t tracer = TracerOf(pid, id);
    if (tracer < 0 || tracer == getpid()) continue;
    if (tracer == 0) {
      may_not = 1;
      if (error == 0) error = EAGAIN;
      continue;
    }
    char name[32];
    NameOf(tracer, name, sizeof name);
    if (strcmp(name, FAULT_WATCH_NAME) == 0) continue;  // it stands
    if (strcmp(name, WATCH_NAME) != 0) {
      error = EPERM;
    } else {
      kill(tracer, SIGUSR1);
      if (error == 0) error = EAGAIN;
    }
  }
  closedir(tasks);
  if (error == EAGAIN && seized > 0) return seized;
  errno = error;
  return error ? -1 : seized;
}

static int StandStill(int pid) {
  const long long begin = Milliseconds(), end = begin + MAY_TAKE_MS;
  for (;;) {
    // Threads that run may make others.
    int waiting = SeizeNew(pid);
    if (waiting < 0 && errno != EAGAIN) return errno;
    if (waiting == 0) break;
    if (waiting < 0) {
      if (Milliseconds() > (may_not ? begin + MAY_NOT_MS : end)) return EPERM;
      poll(0, 0, LOOK_AGAIN_MS);
    }
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
  return 0;
}

static int Hold(int pid) {
  // First: those of its threads that do stand are let go as well, should another not.
  int error = NoteHeld(pid);
  if (error == 0) error = StandStill(pid);
  if (error == 0) NoteDeviceMemory(pid);
  return error;
}

static pid_t watched[MOST_PROCESSES];

// Those that were held now go on; threads that need missing memory are watched still, as are processes that
// were watched before. 0: none of either is left.
static int LetGo(int well, int* count) {
  pid_t let_go[MOST_PROCESSES];
  int let_go_count = 0, left = 0;
  for (int i = 0; i < held_count; ++i) {
    if (held[i].now) {
      let_go[let_go_count++] = held[i].id;
    } else {
      held[left++] = held[i];
    }
  }
  held_count = *count = left;
  const int faults = LetGoOf(let_go, let_go_count, well);
  return faults + left;
}

int main(void) {
  // Rekindle tells when it is over; a terminal's Ctrl-C does not.
  for (int number = 1; number < 32; ++number) {
    if (number != SIGCHLD && number != SIGUSR1 && number != SIGSEGV && number != SIGBUS)
      signal(number, SIG_IGN);
  }
  // Nobody's child: a watch may outlive whoever began it.
  const pid_t child = fork();
  if (child != 0) return child < 0 ? 1 : 0;
  for (;;) {
    const int end = ServeKeeper(KEEPER_SOCKET, PTRACE_O_TRACESYSGOOD, Hold, NoteDeviceArea);
    int count = held_count;
    // Before the other end sees us end, which the kernel tells it first. Where that is gone itself, nobody
    // knows where the device memory is.
    if (end == kKeeperHangs) return 1;  // the kernel lets go of all that it can
    if ((end == 0 || end == 1) && LetGo(end == 0, &count) == 0) return 0;
    for (int i = 0; i < held_count; ++i) {
      watched[i] = held[i].id;
      held[i].now = 0;
    }
    if (!WatchThreads(watched, count)) return 0;
  }
}
