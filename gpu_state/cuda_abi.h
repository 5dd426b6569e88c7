// What Rekindle uses of the CUDA driver's binary interface (libcuda.so.1), declared by us: the build must
// work without NVIDIA's toolkit. Where the toolkit is present, cuda_abi_check.cc compares every size, offset
// and number with its cuda.h.
//
// Source: the CUDA driver API reference, "CUDA Checkpointing" (12.8 and 13.0).
#pragma once

#include <cstddef>
#include <cstdint>

namespace rekindle::gpu::cuda {

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kOperatingSystem = 304;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kIllegalState = 401;
inline constexpr Result kNotFound = 500;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kSystemDriverMismatch = 803;
inline constexpr Result kUnknown = 999;

struct Uuid {
  unsigned char bytes[16];
};

enum class ProcessState : int {
  kRunning = 0,
  kLocked = 1,        // its calls into the driver wait
  kCheckpointed = 2,  // its device memory is host memory of its own; it holds no device
  kFailed = 3,        // lost, says the driver
};
// What drivers newer than CUDA 13.0 say besides, while a move is under way.
inline constexpr int kStateCheckpointing = 4;
inline constexpr int kStateRestoring = 5;

// All argument structures are 64 bytes; what is not named must be zero. Newer drivers give meaning to more of
// these bytes, so they are declared by us at the size that all versions share.
struct LockArgs {
  uint32_t timeout_ms;  // 0: none
  uint32_t reserved0;
  uint64_t reserved1[7];
};
struct CheckpointArgs {
  uint64_t reserved[8];
};
struct GpuPair {
  Uuid from, to;
};
struct RestoreArgs {
  const GpuPair* pairs;  // driver 580 (CUDA 13.0) and newer; every checkpointed GPU, or none
  uint32_t pair_count;
  char reserved0[52 - sizeof(void*)];
  uint64_t reserved1;
};
struct UnlockArgs {
  uint64_t reserved[8];
};

static_assert(sizeof(Uuid) == 16 && sizeof(GpuPair) == 32);
static_assert(sizeof(LockArgs) == 64 && sizeof(CheckpointArgs) == 64);
static_assert(sizeof(RestoreArgs) == 64 && sizeof(UnlockArgs) == 64);
static_assert(offsetof(LockArgs, timeout_ms) == 0);
static_assert(offsetof(RestoreArgs, pairs) == 0 && offsetof(RestoreArgs, pair_count) == 8);

// The version cuDriverGetVersion reports: 1000 * major + 10 * minor.
inline constexpr int kFirstVersionWithCheckpointApi = 12080;  // driver 570
inline constexpr int kFirstVersionWithGpuPairs = 13000;       // driver 580

using InitFunction = Result (*)(unsigned flags);
using DriverGetVersionFunction = Result (*)(int* version);
// cuGetProcAddress of CUDA 11.3; asks for a function as it was in `version`.
using GetProcAddressFunction = Result (*)(const char* symbol, void** function, int version, uint64_t flags);
using GetErrorTextFunction = Result (*)(Result error, const char** text);
using GetRestoreThreadIdFunction = Result (*)(int pid, int* tid);
using GetStateFunction = Result (*)(int pid, ProcessState* state);
using LockFunction = Result (*)(int pid, LockArgs* args);
using CheckpointFunction = Result (*)(int pid, CheckpointArgs* args);
using RestoreFunction = Result (*)(int pid, RestoreArgs* args);
using UnlockFunction = Result (*)(int pid, UnlockArgs* args);

}  // namespace rekindle::gpu::cuda
