// What the simulated driver's libraries, its server and its tools say to each other: fixed structures over
// unix stream sockets, each followed by `text_bytes` of text or array.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu_state/cuda_abi.h"

namespace rekindle::gpu_sim {

// Names the server's socket, in the environment of every process that uses the simulated driver.
inline constexpr char kServerVariable[] = "REKINDLE_GPU_SIM";
inline constexpr unsigned kMaxGpus = 32;

// The calls that are counted and into which a fault can be put.
enum class Call : uint32_t {
  kLock,
  kCheckpoint,
  kRestore,
  kUnlock,
  kState,
  kRestoreThread,
  kInit,
  kContext,
  kMemoryAllocate,
  kMemoryFree,
  kLaunch,
};
inline constexpr unsigned kCalls = 11;
const char* CallName(Call call);
bool CallFromName(const std::string& name, Call* call);

enum class FaultKind : uint32_t {
  kNone,
  kFail,
  kDelay,
  kHang,
  kKillTarget,
  kKillCaller,
  kWrongSuccess,
  kNoEffect
};
// Before anything was done; midway, after which what was begun is undone or finished; with all done.
enum class FaultTime : uint32_t { kBefore, kDuring, kAfter };

struct Fault {
  FaultKind kind = FaultKind::kNone;
  FaultTime time = FaultTime::kBefore;
  int32_t code = 0;          // kFail: what the call returns
  uint32_t delay_ms = 0;     // kDelay
  uint32_t then_failed = 0;  // kFail: the target's state becomes "failed"
  // kHang: when the caller has died, the target finishes what it was asked, and the next caller gets the
  // answer in place of its own.
  uint32_t answers_late = 0;
  // kHang: the target hangs on when the caller has died, until faults are cleared.
  uint32_t until_cleared = 0;
};

struct Gpu {
  gpu::cuda::Uuid uuid;
  char model[64];
  uint64_t total_bytes;
  uint64_t used_bytes;
  uint32_t lost;    // fallen off the bus: nothing of it can be asked, and nothing goes onto it or off it
  uint32_t silent;  // the management library's calls hang
  uint32_t untold;  // the management library tells neither its memory nor its processes
};

struct Settings {
  int32_t driver_version = 0;
  uint32_t managed_can_be_checkpointed = 0;
  uint32_t pairs_name_visible_gpus = 0;  // a restore with pairs must name each GPU the process sees
  uint32_t mig = 0;
  uint32_t pids_from_outside = 0;  // the management library names processes as if they were in a container
  uint32_t bytes_untold = 0;       // nor does it tell what each has
  uint32_t bytes_zero = 0;         // it says that each has nothing
  uint32_t forks_answer = 0;       // who asks of a forked child is answered by its parent
  uint32_t missing_room_is_final = 1;  // a restore that did not fit can't be repeated
  uint32_t sync_crashes = 1;           // a stream's or context's synchronize while checkpointed
  uint64_t host_extra_bytes = 0;       // what a checkpoint takes of host memory beside the device's
  uint32_t leaves_holes = 0;           // where device memory was is nothing while it is out
  uint32_t times_cleared = 0;          // how often faults have been cleared
  char driver_text[32] = {};
};

enum class Op : uint32_t {
  kHello,       // -> settings, and all GPUs as text
  kAllocate,    // uuid, bytes -> id and a memfd
  kFree,        // id
  kOpenShared,  // id -> memfd, bytes and uuid of another process's allocation
  kUseContext,  // uuid: this process has a context on the GPU from now on
  kDropContext,
  kBeginCall,  // call, pid of the target -> id of the entry in the log, fault
  kEndCall,    // id of that entry, result
  kProcesses,  // uuid -> ProcessUse[] as text
  kControl,    // text: a command for the fault table and so on -> text
};

struct Request {
  Op op = Op::kHello;
  uint32_t text_bytes = 0;
  Call call = Call::kInit;
  int32_t pid = 0;
  int32_t result = 0;
  uint64_t id = 0;
  uint64_t bytes = 0;
  gpu::cuda::Uuid uuid = {};
};

struct Reply {
  gpu::cuda::Result result = gpu::cuda::kSuccess;
  uint32_t text_bytes = 0;
  uint64_t id = 0;
  uint64_t bytes = 0;
  gpu::cuda::Uuid uuid = {};
  Fault fault = {};
  Settings settings = {};
};

struct ProcessUse {
  int32_t pid;
  uint64_t bytes;
};

inline bool operator==(const gpu::cuda::Uuid& a, const gpu::cuda::Uuid& b) {
  for (int i = 0; i < 16; ++i) {
    if (a.bytes[i] != b.bytes[i]) return false;
  }
  return true;
}
std::string UuidText(const gpu::cuda::Uuid& uuid);  // GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
bool UuidFromText(const std::string& text, gpu::cuda::Uuid* uuid);

// All false or -1 with errno set when the other side is gone. None raises SIGPIPE.
int ListenOn(const std::string& path);
int ConnectTo(const std::string& path);
bool SendAll(int socket, const void* data, size_t bytes, int descriptor = -1);
bool ReceiveAll(int socket, void* data, size_t bytes, int* descriptor = nullptr);

// One request and its reply. The descriptor that comes with some replies goes to *descriptor (else -1).
bool Ask(int socket, const Request& request, const std::string& text, Reply* reply, std::string* reply_text,
         int* descriptor);
// The same over a connection of its own. False also when kServerVariable names no server that answers.
bool AskOnce(const Request& request, const std::string& text, Reply* reply, std::string* reply_text);

template <typename T>
std::vector<T> ArrayFromText(const std::string& text) {
  const T* first = reinterpret_cast<const T*>(text.data());
  return std::vector<T>(first, first + text.size() / sizeof(T));
}

}  // namespace rekindle::gpu_sim
