// rekindle-gpu.so, a plugin of CRIU's: when all threads of a job stand still, and again before they go on,
// Rekindle moves the job's device memory, and CRIU, which traces them, lets the driver's own threads run
// meanwhile (gpu_state/thread_keeper.h). Without it a job would have moments of running without its device
// memory, and could die of one. After CRIU's plugins/cuda/cuda_plugin.c, which does the same with
// cuda-checkpoint.
//
// Linked against no part of the C library, as ckpt/page_filter.c.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "gpu_state/thread_keeper.h"

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

#define MOST_TASKS 4096

// CRIU's plugin interface, 0.2.0 (criu/include/criu-plugin.h): that of 4.x.
enum { kStageDump, kStagePreDump, kStageRestore };
enum { kResumeDevicesLate = 9, kPauseDevices = 10, kCheckpointDevices = 11, kHooks = 12 };
#define PLUGIN_VERSION ((0 << 16) + (2 << 8) + 0)
struct PluginDescription {
  const char* name;
  int (*init)(int stage);
  void (*exit)(int stage, int result);
  unsigned int version, max_hooks;
  void* hooks[kHooks];
};

static int stage = -1;
static int began, asked, is_out, refused;  // once for each tree, at its first process

static int tasks[MOST_TASKS], task_count;

static int UsesCuda(int pid) {
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  FILE* file = fopen(path, "re");
  if (!file) return 0;
  int uses = 0;
  while (!uses && fgets(line, sizeof line, file)) uses = strstr(line, "libcuda.so") != 0;
  fclose(file);
  return uses;
}

// Whoever moved the memory could not bring it back, and lets them go on once they are watched; or has gone in
// the middle: then its helper, or whatever of Rekindle starts next, brings it back and lets them go on.
static void StopUsersOfGpus(void) {
  for (int i = 0; i < task_count; ++i) {
    if (UsesCuda(tasks[i])) kill(tasks[i], SIGSTOP);
  }
}

enum { kAway = 2 };
// 0: done. 1: refused. kAway: refused, and the device memory is out. Else nobody answers any more.
static int Ask(enum KeeperMoment moment, int failed) {
  const char* path = getenv(KEEPER_PATH);
  if (!path || !*path) return 0;
  struct sockaddr_un address;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof address.sun_path) return -1;
  memcpy(address.sun_path, path, strlen(path));
  const int socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  int result = -1;
  if (socket_ >= 0 && connect(socket_, (struct sockaddr*)&address, sizeof address) == 0) {
    struct KeeperMessage message;
    memset(&message, 0, sizeof message);
    message.what = kKeeperStands;
    message.address = moment;
    message.bytes = (uint64_t)(failed != 0);
    if (send(socket_, &message, sizeof message, MSG_NOSIGNAL) == (ssize_t)sizeof message)
      result = ServeKeeper(socket_, PTRACE_O_SUSPEND_SECCOMP | PTRACE_O_TRACESYSGOOD, 0, 0);
  }
  if (socket_ >= 0) close(socket_);
  return result;
}

static int Init(int now) {
  stage = now;
  return 0;
}

static void Exit(int at, int result) {
  if (at != kStageDump || !began) return;
  const int done = Ask(kKeeperDumped, result);
  if (done == kAway || (done < 0 && is_out)) StopUsersOfGpus();
}

static int OnBegin(int pid) {
  if (stage != kStageDump) return 0;
  if (task_count < MOST_TASKS) tasks[task_count++] = pid;
  if (began) return 0;
  began = 1;
  // CRIU's clock for the threads to stop runs already, and work on the GPU has another one to end.
  const unsigned left = alarm(0);
  const int result = Ask(kKeeperBegins, 0);
  if (left != 0) alarm(left);
  return result == 0 ? 0 : -1;
}

static int OnFrozen(int pid) {
  (void)pid;
  if (stage != kStageDump || asked) return 0;
  asked = 1;
  const int result = Ask(kKeeperFrozen, 0);
  is_out = result == 0;
  if (result < 0 || result == kAway) StopUsersOfGpus();
  return result == 0 ? 0 : -1;
}

static int OnRestored(int pid) {
  if (stage != kStageRestore) return 0;
  if (!asked) {
    asked = 1;
    refused = Ask(kKeeperRestored, 0) != 0;
  }
  // CRIU heeds no error here, and would let it run without its device memory.
  if (refused) kill(pid, SIGKILL);
  return refused ? -1 : 0;
}

__attribute__((visibility("default"))) struct PluginDescription CR_PLUGIN_DESC = {
    "rekindle_gpu",
    Init,
    Exit,
    PLUGIN_VERSION,
    kHooks,
    {[kResumeDevicesLate] = (void*)OnRestored,
     [kPauseDevices] = (void*)OnBegin,
     [kCheckpointDevices] = (void*)OnFrozen},
};
