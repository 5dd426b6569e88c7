#define _GNU_SOURCE
#include "gpu_state/thread_watch.h"

#include <ctype.h>
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_state/thread_keeper.h"

// How soon one goes on once the memory is there.
#define LOOK_AGAIN_MS 20
#define MOST_FAULTS 4096
#define MOST_STANDING 65536
#define MOST_AREAS 65536
#define LONGEST_LINE 512
#define DEVICE_FILES "/dev/nvidia"
#define DRIVER_LIBRARY "libcuda.so"

struct Fault {
  pid_t id;
  uint64_t address;
  int hole;   // nothing is mapped there
  int alone;  // the others of its process are watched no more
};
static struct Fault faults[MOST_FAULTS];
static int fault_count;

pid_t TracerOf(pid_t pid, pid_t id) {
  char path[96], line[128];
  snprintf(path, sizeof path, "/proc/%d/task/%d/status", pid, id);
  FILE* file = fopen(path, "re");
  if (!file) return -1;
  pid_t tracer = -1;
  char state = 0;
  while (fgets(line, sizeof line, file)) {
    sscanf(line, "State: %c", &state);
    if (state == 'Z' || state == 'X') break;  // a first thread stays so as long as there are others
    if (sscanf(line, "TracerPid: %d", &tracer) == 1) break;
  }
  fclose(file);
  return tracer;
}

struct Area {
  pid_t pid;
  uint64_t start, end;
};
static struct Area device_areas[MOST_AREAS];
static int device_area_count;

void NoteDeviceMemory(pid_t pid) {
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  FILE* file = fopen(path, "re");
  if (!file) return;
  int known = 0;
  while (fgets(line, sizeof line, file) && device_area_count < MOST_AREAS) {
    unsigned long long start, end;
    if (!strstr(line, DEVICE_FILES) || sscanf(line, "%llx-%llx", &start, &end) != 2) continue;
    // Where all of it is out already, what was known before holds.
    for (int i = device_area_count - 1; i >= 0 && !known; --i) {
      if (device_areas[i].pid == pid) device_areas[i] = device_areas[--device_area_count];
    }
    known = 1;
    device_areas[device_area_count++] = (struct Area){pid, start, end};
  }
  fclose(file);
}

void NoteDeviceArea(pid_t pid, uint64_t address, uint64_t bytes) {
  for (int i = 0; i < device_area_count; ++i) {
    const struct Area* area = &device_areas[i];
    if (area->pid == pid && area->start == address && area->end == address + bytes) return;
  }
  if (device_area_count < MOST_AREAS)
    device_areas[device_area_count++] = (struct Area){pid, address, address + bytes};
}

static pid_t ProcessOf(pid_t id) {
  char path[64], line[128];
  snprintf(path, sizeof path, "/proc/%d/status", id);
  FILE* file = fopen(path, "re");
  if (!file) return -1;
  pid_t pid = -1;
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "Tgid: %d", &pid) == 1) break;
  }
  fclose(file);
  return pid;
}

// What /proc/ID/maps says of an address; 0: nothing.
static int LineOf(pid_t id, uint64_t address, char line[LONGEST_LINE]) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/maps", id);
  FILE* file = fopen(path, "re");
  if (!file) return 0;
  int found = 0;
  while (!found && fgets(line, LONGEST_LINE, file)) {
    unsigned long long start, end;
    found = sscanf(line, "%llx-%llx", &start, &end) == 2 && address >= start && address < end;
  }
  fclose(file);
  return found;
}

static int IsInDeviceArea(pid_t id, uint64_t address) {
  const pid_t pid = ProcessOf(id);
  for (int i = 0; i < device_area_count; ++i) {
    const struct Area* area = &device_areas[i];
    if (area->pid == pid && address >= area->start && address < area->end) return 1;
  }
  return 0;
}

// Was that memory of the device, or is the driver's own code about to use it?
static int IsTheDrivers(pid_t id, uint64_t address) {
  if (IsInDeviceArea(id, address)) return 1;
  struct iovec all;
  struct user_regs_struct registers;
  all.iov_base = &registers;
  all.iov_len = sizeof registers;
  if (ptrace(PTRACE_GETREGSET, id, NT_PRSTATUS, &all) != 0) return 0;
#ifdef __x86_64__
  const uint64_t code = registers.rip;
#else
  const uint64_t code = registers.pc;
#endif
  char line[LONGEST_LINE];
  return LineOf(id, code, line) && strstr(line, DRIVER_LIBRARY) != 0;
}

static int RightsAt(pid_t id, uint64_t address, char rights[8]) {
  char line[LONGEST_LINE];
  return LineOf(id, address, line) && sscanf(line, "%*s %7s", rights) == 1;
}

// Is there memory at `address` that may not be touched? -1: nothing is known of it.
static int IsForbidden(pid_t id, uint64_t address) {
  char rights[8];
  return RightsAt(id, address, rights) ? strncmp(rights, "---", 3) == 0 : -1;
}

// It was missing when a thread stopped for it, and is not any more.
static int IsBack(pid_t id, uint64_t address) {
  char rights[8];
  return RightsAt(id, address, rights) && strncmp(rights, "rw", 2) == 0;
}

static int IsHole(pid_t id, uint64_t address) {
  char line[LONGEST_LINE];
  return !LineOf(id, address, line);
}

static struct Fault* FaultOf(pid_t id) {
  for (int i = 0; i < fault_count; ++i) {
    if (faults[i].id == id) return &faults[i];
  }
  return 0;
}

static void Forget(struct Fault* fault) { *fault = faults[--fault_count]; }

// One has stopped at a signal that it is about to get.
static int StandsAtMissingMemory(pid_t id, int number) {
  siginfo_t info;
  if (number != SIGSEGV || fault_count == MOST_FAULTS || ptrace(PTRACE_GETSIGINFO, id, 0, &info) != 0)
    return 0;
  const uint64_t address = (uint64_t)(uintptr_t)info.si_addr;
  const int hole = info.si_code == SEGV_MAPERR;
  if (hole ? !IsInDeviceArea(id, address) : info.si_code != SEGV_ACCERR || !IsTheDrivers(id, address))
    return 0;
  if (!(hole ? IsHole(id, address) : IsForbidden(id, address) == 1) && !IsBack(id, address)) return 0;
  faults[fault_count++] = (struct Fault){id, address, hole, 0};
  return 1;
}

// What becomes of one that has stopped.
enum Then { kGoesOn, kIsLetGo, kStandsStill };

// Of those that are to stand still.
struct Standing {
  pid_t id;
  int was_stopped;  // with its whole process
};
static struct Standing standing[MOST_STANDING];
static int standing_count;

static struct Standing* Stands(pid_t id) {
  for (int i = 0; i < standing_count; ++i) {
    if (standing[i].id == id) return &standing[i];
  }
  return 0;
}

static void Look(pid_t id, int status, enum Then then) {
  if (!WIFSTOPPED(status)) {
    struct Fault* fault = FaultOf(id);
    if (fault) Forget(fault);
    return;
  }
  const int event = status >> 16, number = WSTOPSIG(status);
  if (event == 0 && StandsAtMissingMemory(id, number)) return;
  const int given = event == 0 ? number : 0;
  if (then == kIsLetGo) {
    ptrace(PTRACE_DETACH, id, 0, given);
  } else if (then == kStandsStill && event == PTRACE_EVENT_STOP && standing_count < MOST_STANDING) {
    if (!Stands(id)) standing[standing_count++] = (struct Standing){id, number != SIGTRAP};
  } else if (event == PTRACE_EVENT_STOP && number != SIGTRAP) {
    ptrace(PTRACE_LISTEN, id, 0, 0);  // the whole process has been stopped
  } else {
    ptrace(PTRACE_CONT, id, 0, given);
  }
}

// Calls `act` with each thread of these processes that the calling thread traces; how often it gave 1.
static int ForEachTraced(const pid_t* pids, int count, int (*act)(pid_t id)) {
  int done = 0;
  for (int i = 0; i < count; ++i) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pids[i]);
    DIR* tasks = opendir(path);
    if (!tasks) continue;
    for (struct dirent* entry; (entry = readdir(tasks));) {
      if (!isdigit((unsigned char)entry->d_name[0])) continue;
      const pid_t id = atoi(entry->d_name);
      if (TracerOf(pids[i], id) == getpid()) done += act(id);
    }
    closedir(tasks);
  }
  return done;
}

// One that runs is asked to stop.
static int Interrupt(pid_t id) {
  return !FaultOf(id) && !Stands(id) && ptrace(PTRACE_INTERRUPT, id, 0, 0) == 0;
}

static int GoOn(pid_t id) {
  if (FaultOf(id)) return 0;
  ptrace(PTRACE_SETOPTIONS, id, 0, PTRACE_O_TRACECLONE);
  const struct Standing* stands = Stands(id);
  return ptrace(stands && stands->was_stopped ? PTRACE_LISTEN : PTRACE_CONT, id, 0, 0) == 0;
}

static int LetGo(pid_t id) {
  struct Fault* fault = FaultOf(id);
  if (fault) return fault->alone = 1;
  return ptrace(PTRACE_DETACH, id, 0, 0) == 0;
}

static void StopAll(const pid_t* pids, int count, enum Then then) {
  standing_count = 0;
  // Any stop before the one that was asked for takes its place.
  while (ForEachTraced(pids, count, Interrupt) > 0) {
    int status = 0;
    pid_t id = waitpid(-1, &status, __WALL);
    for (; id > 0; id = waitpid(-1, &status, __WALL | WNOHANG)) Look(id, status, then);
  }
}

// Those for which the memory is there again repeat their instruction.
static void LookAtFaults(int letting_go) {
  for (int i = fault_count - 1; i >= 0; --i) {
    const struct Fault fault = faults[i];
    if (IsForbidden(fault.id, fault.address) == 1 || (fault.hole && IsHole(fault.id, fault.address)))
      continue;
    Forget(&faults[i]);
    ptrace(letting_go || fault.alone ? PTRACE_DETACH : PTRACE_CONT, fault.id, 0, 0);
  }
}

int LetGoOf(const pid_t* pids, int count, int there) {
  ForEachTraced(pids, count, LetGo);
  for (int i = fault_count - 1; i >= 0 && there; --i) {
    const pid_t id = faults[i].id;
    if (!faults[i].alone) continue;
    Forget(&faults[i]);
    // What is inaccessible still is so on purpose: it repeats its instruction, and gets the signal.
    ptrace(PTRACE_DETACH, id, 0, 0);
  }
  LookAtFaults(0);
  return fault_count;
}

// A new socket, of which both ends are ours until somebody has taken the other.
static int OpenSocket(void) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    close(KEEPER_SOCKET);
    return 0;
  }
  const int open = dup2(ends[1], WATCH_PEER) >= 0;
  dup2(ends[0], KEEPER_SOCKET);
  close(ends[0]);
  close(ends[1]);
  return open;
}

static int ArrivedSignals(void) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &signals, 0);
  static int arrived = -1;
  if (arrived < 0) arrived = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  return arrived;
}

int WatchThreads(const pid_t* pids, int count) {
  const int arrived = ArrivedSignals();
  if (arrived < 0) return 0;
  prctl(PR_SET_NAME, count > 0 ? WATCH_NAME : FAULT_WATCH_NAME);  // from now on SIGUSR1 is heeded
  ForEachTraced(pids, count, GoOn);
  const int socket_ = OpenSocket() ? KEEPER_SOCKET : -1;
  int letting_go = count == 0;
  for (;;) {
    int status = 0;
    pid_t id;
    while ((id = waitpid(-1, &status, __WALL | WNOHANG)) > 0) {
      Look(id, status, letting_go ? kIsLetGo : kGoesOn);
    }
    if (id < 0 && errno == ECHILD) return 0;
    LookAtFaults(letting_go);
    if (letting_go && fault_count == 0) return 0;
    struct pollfd both[2] = {{arrived, POLLIN, 0}, {socket_, POLLIN, 0}};
    poll(both, 2, fault_count > 0 ? LOOK_AGAIN_MS : -1);
    if (both[1].revents & POLLIN) {
      close(WATCH_PEER);  // the end of who took the other is to be seen
      StopAll(pids, count, kStandsStill);
      prctl(PR_SET_NAME, KEEPER_PROGRAM);
      return 1;
    }
    struct signalfd_siginfo info;
    while (read(arrived, &info, sizeof info) > 0) {
      if (info.ssi_signo == SIGUSR1 && !letting_go) {
        StopAll(pids, count, kIsLetGo);
        letting_go = 1;
        if (fault_count > 0) prctl(PR_SET_NAME, FAULT_WATCH_NAME);
      }
    }
  }
}
