// What the NVIDIA driver reaches by itself, to compare with: copies between device and page-locked memory,
// and its bare checkpoint calls on a process. Prints one line of JSON. Needs nothing but libc, and runs on
// the simulated driver too (tests/gpu_sim), where its times mean nothing.
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gpu_state/cuda_abi.h"
#include "tests/gpu_jobs/driver_api.h"
#include "tests/gpu_jobs/state_file.h"

namespace rekindle::gpu_jobs {
namespace {

namespace cuda = gpu::cuda;

constexpr char kUsage[] =
    "usage: gpu_bare_calls memcpy BYTES     device to host and back, through page-locked memory\n"
    "       gpu_bare_calls drain BYTES      host to host: one thread, and as many as there are cores\n"
    "       gpu_bare_calls state PID        what the driver says of it\n"
    "       gpu_bare_calls cycle PID        lock, checkpoint, restore, unlock\n"
    "       gpu_bare_calls out PID          lock, checkpoint\n"
    "       gpu_bare_calls back PID         restore, unlock\n"
    "  Times are seconds. Of the copies, the best of three; beyond 8 GB, of 8 GB and scaled.\n";
constexpr uint64_t kPieceBytes = 1 << 30;
constexpr uint64_t kMostBytes = 8'000'000'000;
constexpr int kRepeats = 3;
constexpr unsigned kLockMilliseconds = 60'000;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Body>
double Timed(Body body) {
  const double begin = Seconds();
  body();
  return Seconds() - begin;
}

// `bytes` in pieces of one buffer's size: page-locking as many bytes as a big job has would take longer than
// copying them, and how fast a copy is does not depend on it. Nor does it on how many there are, beyond some.
template <typename Copy>
double BestOfCopies(uint64_t bytes, uint64_t piece, Copy copy) {
  const uint64_t copied = std::min(bytes, kMostBytes);
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    best = std::min(best, Timed([&] {
                      for (uint64_t done = 0; done < copied; done += piece) {
                        copy(std::min(piece, copied - done));
                      }
                    }));
  }
  return best * static_cast<double>(bytes) / static_cast<double>(copied);
}

void Memcpy(uint64_t bytes) {
  const DriverApi& api = LoadDriver();
  Check(api.cuInit(0), "cuInit");
  int device = 0;
  Check(api.cuDeviceGet(&device, 0), "cuDeviceGet");
  Context* context = nullptr;
  Check(api.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  Check(api.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  Stream* stream = nullptr;
  Check(api.cuStreamCreate(&stream, 1), "cuStreamCreate");
  const uint64_t piece = std::min(bytes, kPieceBytes);
  DeviceAddress there = 0;
  void* here = nullptr;
  Check(api.cuMemAlloc_v2(&there, piece), "cuMemAlloc");
  Check(api.cuMemAllocHost_v2(&here, piece), "cuMemAllocHost");
  std::memset(here, 1, piece);
  const double to_device = BestOfCopies(bytes, piece, [&](uint64_t n) {
    Check(api.cuMemcpyHtoDAsync_v2(there, here, n, stream), "cuMemcpyHtoDAsync");
    Check(api.cuStreamSynchronize(stream), "cuStreamSynchronize");
  });
  const double to_host = BestOfCopies(bytes, piece, [&](uint64_t n) {
    Check(api.cuMemcpyDtoHAsync_v2(here, there, n, stream), "cuMemcpyDtoHAsync");
    Check(api.cuStreamSynchronize(stream), "cuStreamSynchronize");
  });
  std::printf("{\"bytes\":%llu,\"to_host_seconds\":%.6f,\"to_device_seconds\":%.6f}\n",
              static_cast<unsigned long long>(bytes), to_host, to_device);
}

char* Mapped(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("cannot map %llu bytes", static_cast<unsigned long long>(bytes));
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return static_cast<char*>(memory);
}

void Drain(uint64_t bytes) {
  const uint64_t piece = std::min(bytes, kPieceBytes);
  char* from = Mapped(piece);
  char* to = Mapped(piece);
  const double one = BestOfCopies(bytes, piece, [&](uint64_t n) { std::memcpy(to, from, n); });
  const uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const double all = BestOfCopies(bytes, piece, [&](uint64_t n) {
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < cores; ++i) {
      const uint64_t begin = n / cores * i, end = i + 1 == cores ? n : n / cores * (i + 1);
      threads.emplace_back([=] { std::memcpy(to + begin, from + begin, end - begin); });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::printf("{\"bytes\":%llu,\"one_thread_seconds\":%.6f,\"threads\":%llu,\"all_threads_seconds\":%.6f}\n",
              static_cast<unsigned long long>(bytes), one, static_cast<unsigned long long>(cores), all);
}

class CheckpointCalls {
 public:
  explicit CheckpointCalls(int pid) : pid_(pid) {
    const double begin = Seconds();
    const DriverApi& api = LoadDriver();
    Check(api.cuInit(0), "cuInit");
    // Loaded by now; this only names it.
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    get_ = reinterpret_cast<cuda::GetProcAddressFunction>(dlsym(library, "cuGetProcAddress"));
    if (get_ == nullptr) Die("libcuda.so.1 has no cuGetProcAddress");
    init_seconds_ = Seconds() - begin;
  }

  void Out() {
    cuda::LockArgs lock = {};
    lock.timeout_ms = kLockMilliseconds;
    lock_seconds_ = Call<cuda::LockFunction>("cuCheckpointProcessLock", &lock);
    cuda::CheckpointArgs checkpoint = {};
    checkpoint_seconds_ = Call<cuda::CheckpointFunction>("cuCheckpointProcessCheckpoint", &checkpoint);
  }
  void Back() {
    cuda::RestoreArgs restore = {};
    restore_seconds_ = Call<cuda::RestoreFunction>("cuCheckpointProcessRestore", &restore);
    cuda::UnlockArgs unlock = {};
    unlock_seconds_ = Call<cuda::UnlockFunction>("cuCheckpointProcessUnlock", &unlock);
  }
  void PrintState() {
    cuda::ProcessState state = cuda::ProcessState::kFailed;
    Call<cuda::GetStateFunction>("cuCheckpointProcessGetState", &state);
    std::printf("{\"pid\":%d,\"state\":%d}\n", pid_, static_cast<int>(state));
  }
  void Print() const {
    std::printf(
        "{\"pid\":%d,\"init_seconds\":%.6f,\"lock_seconds\":%.6f,\"checkpoint_seconds\":%.6f,"
        "\"restore_seconds\":%.6f,\"unlock_seconds\":%.6f}\n",
        pid_, init_seconds_, lock_seconds_, checkpoint_seconds_, restore_seconds_, unlock_seconds_);
  }

 private:
  template <typename Function, typename Argument>
  double Call(const char* name, Argument* argument) {
    void* function = nullptr;
    Check(get_(name, &function, cuda::kFirstVersionWithCheckpointApi, 0), name);
    if (function == nullptr) Die("the driver has no %s (it is older than 570)", name);
    return Timed([&] { Check(reinterpret_cast<Function>(function)(pid_, argument), name); });
  }

  const int pid_;
  cuda::GetProcAddressFunction get_ = nullptr;
  double init_seconds_ = 0, lock_seconds_ = 0, checkpoint_seconds_ = 0, restore_seconds_ = 0,
         unlock_seconds_ = 0;
};

}  // namespace
}  // namespace rekindle::gpu_jobs

int main(int argc, char** argv) {
  using namespace rekindle::gpu_jobs;
  const std::string what = argc == 3 ? argv[1] : "";
  char* end = nullptr;
  const unsigned long long number = argc == 3 ? std::strtoull(argv[2], &end, 10) : 0;
  if (number == 0 || *end != '\0') {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (what == "memcpy") {
    Memcpy(number);
    return 0;
  }
  if (what == "drain") {
    Drain(number);
    return 0;
  }
  if (what != "state" && what != "cycle" && what != "out" && what != "back") {
    std::fputs(kUsage, stderr);
    return 2;
  }
  CheckpointCalls calls(static_cast<int>(number));
  if (what == "state") {
    calls.PrintState();
    return 0;
  }
  if (what != "back") calls.Out();
  if (what != "out") calls.Back();
  calls.Print();
  return 0;
}
