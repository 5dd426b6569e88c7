#include "tests/gpu_sim/driver/door.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "tests/gpu_sim/driver/thread.h"

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::Result;

struct DoorPage {
  uint64_t magic;
  int32_t pid;     // as its owner sees itself: a forked child's copy is thereby known as one
  int32_t thread;  // likewise
  int32_t outer_end;
  int32_t inner_end;
};
constexpr uint64_t kMagic = 0x6d69732d7570672d;
constexpr uintptr_t kDoorAddress = 0x200000000000;  // between programs and libraries: nobody else's

DoorPage* OwnPage() { return reinterpret_cast<DoorPage*>(kDoorAddress); }

// The process's or thread's ID in its own PID namespace; 0 if it is gone.
int OwnId(const std::string& status_path) {
  std::ifstream status(status_path);
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, 6, "NSpid:") != 0) continue;
    return std::atoi(line.substr(line.find_last_of("\t ") + 1).c_str());
  }
  return 0;
}

// The thread of `pid` that knows itself as `thread`, as we see it.
int ThreadAsSeenHere(pid_t pid, int thread) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  DIR* folder = opendir(tasks.c_str());
  if (folder == nullptr) return thread;
  int found = thread;
  while (const dirent* entry = readdir(folder)) {
    if (OwnId(tasks + "/" + entry->d_name + "/status") == thread) found = std::atoi(entry->d_name);
  }
  closedir(folder);
  return found;
}

// A copy of the target's outer end, or -1 and why not.
int OuterEndOf(pid_t pid, Result* why, int* thread) {
  *why = gpu::cuda::kInvalidValue;
  if (pid <= 0) return -1;
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  *why = process < 0 ? gpu::cuda::kOperatingSystem : gpu::cuda::kNotInitialized;
  if (process < 0) return -1;
  DoorPage page = {};
  iovec here{&page, sizeof(page)}, there{OwnPage(), sizeof(page)};
  const ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
  if (got < 0 && errno == EPERM) *why = gpu::cuda::kNotPermitted;
  int end = -1;
  if (got == sizeof(page) && page.magic == kMagic &&
      page.pid == OwnId("/proc/" + std::to_string(pid) + "/status")) {
    *thread = page.thread;
    end = static_cast<int>(syscall(SYS_pidfd_getfd, process, page.outer_end, 0));
    if (end < 0 && errno == EPERM) *why = gpu::cuda::kNotPermitted;
  }
  close(process);
  return end;
}

}  // namespace

bool OpenDoor(DoorHandler handler) {
  void* page = mmap(OwnPage(), sizeof(DoorPage), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (page != OwnPage()) return false;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  std::promise<int> thread_id;
  std::future<int> thread_started = thread_id.get_future();
  StartThread([inner = ends[0], handler = std::move(handler), started = std::move(thread_id)]() mutable {
    pthread_setname_np(pthread_self(), "gpu-sim-restore");
    started.set_value(gettid());
    DoorRequest request;
    int caller = -1;
    std::optional<DoorReply> late;
    while (ReceiveAll(inner, &request, sizeof(request), &caller)) {
      DoorReply reply = handler(request, caller);
      if (late) reply = *std::exchange(late, std::nullopt);
      if (request.fault.answers_late != 0) {
        late = reply;
      } else {
        SendAll(caller, &reply, sizeof(reply));
      }
      close(caller);
    }
  }).detach();
  *OwnPage() = {kMagic, getpid(), thread_started.get(), ends[1], ends[0]};
  return true;
}

void ForgetDoor() {
  close(OwnPage()->outer_end);
  close(OwnPage()->inner_end);
  munmap(OwnPage(), sizeof(DoorPage));
}

Result KnockAt(pid_t pid, const DoorRequest& request, DoorReply* reply) {
  Result why;
  int thread = 0;
  const int door = OuterEndOf(pid, &why, &thread);
  if (door < 0) return why;
  if (request.call == Call::kRestoreThread && request.fault.time != FaultTime::kDuring) {
    // As with the real driver, a process that stands still is no obstacle.
    close(door);
    *reply = {gpu::cuda::kSuccess, ThreadAsSeenHere(pid, thread)};
    return reply->result;
  }
  int own[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, own) != 0) {
    close(door);
    return gpu::cuda::kOperatingSystem;
  }
  const bool sent = SendAll(door, &request, sizeof(request), own[1]);
  close(door);
  close(own[1]);
  if (sent && request.fault.kind == FaultKind::kKillCaller && request.fault.time == FaultTime::kDuring) {
    raise(SIGKILL);
  }
  const bool answered = sent && ReceiveAll(own[0], reply, sizeof(*reply));
  // Until the target has closed its end: it may be dumped next, and that is a socket of our network.
  char more = 0;
  while (answered && ReceiveAll(own[0], &more, sizeof(more))) {
  }
  close(own[0]);
  if (!answered) return gpu::cuda::kOperatingSystem;
  if (request.call == Call::kRestoreThread) reply->value = ThreadAsSeenHere(pid, reply->value);
  return reply->result;
}

}  // namespace rekindle::gpu_sim
