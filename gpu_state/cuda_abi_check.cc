// Compiled where NVIDIA's toolkit is: its cuda.h must agree with our declarations. Has no code.
#include <cuda.h>

#include <cstddef>

#include "gpu_state/cuda_abi.h"

namespace rekindle::gpu::cuda {

static_assert(sizeof(CUresult) == sizeof(Result));
static_assert(sizeof(CUuuid) == sizeof(Uuid));
static_assert(CUDA_SUCCESS == kSuccess && CUDA_ERROR_INVALID_VALUE == kInvalidValue);
static_assert(CUDA_ERROR_OUT_OF_MEMORY == kOutOfMemory && CUDA_ERROR_NOT_INITIALIZED == kNotInitialized);
static_assert(CUDA_ERROR_DEINITIALIZED == kDeinitialized && CUDA_ERROR_STUB_LIBRARY == kStubLibrary);
static_assert(CUDA_ERROR_NO_DEVICE == kNoDevice && CUDA_ERROR_INVALID_DEVICE == kInvalidDevice);
static_assert(CUDA_ERROR_INVALID_IMAGE == kInvalidImage && CUDA_ERROR_INVALID_CONTEXT == kInvalidContext);
static_assert(CUDA_ERROR_OPERATING_SYSTEM == kOperatingSystem && CUDA_ERROR_INVALID_HANDLE == kInvalidHandle);
static_assert(CUDA_ERROR_ILLEGAL_STATE == kIllegalState && CUDA_ERROR_NOT_FOUND == kNotFound);
static_assert(CUDA_ERROR_NOT_READY == kNotReady && CUDA_ERROR_ILLEGAL_ADDRESS == kIllegalAddress);
static_assert(CUDA_ERROR_LAUNCH_FAILED == kLaunchFailed && CUDA_ERROR_NOT_PERMITTED == kNotPermitted);
static_assert(CUDA_ERROR_NOT_SUPPORTED == kNotSupported);
static_assert(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH == kSystemDriverMismatch && CUDA_ERROR_UNKNOWN == kUnknown);

#if CUDA_VERSION >= 12080
static_assert(CU_PROCESS_STATE_RUNNING == static_cast<int>(ProcessState::kRunning));
static_assert(CU_PROCESS_STATE_LOCKED == static_cast<int>(ProcessState::kLocked));
static_assert(CU_PROCESS_STATE_CHECKPOINTED == static_cast<int>(ProcessState::kCheckpointed));
static_assert(CU_PROCESS_STATE_FAILED == static_cast<int>(ProcessState::kFailed));
static_assert(sizeof(CUprocessState) == sizeof(ProcessState));
static_assert(sizeof(CUcheckpointLockArgs) == sizeof(LockArgs));
static_assert(offsetof(CUcheckpointLockArgs, timeoutMs) == offsetof(LockArgs, timeout_ms));
static_assert(sizeof(CUcheckpointCheckpointArgs) == sizeof(CheckpointArgs));
static_assert(sizeof(CUcheckpointRestoreArgs) == sizeof(RestoreArgs));
static_assert(sizeof(CUcheckpointUnlockArgs) == sizeof(UnlockArgs));
#endif
#if CUDA_VERSION >= 13000
static_assert(sizeof(CUcheckpointGpuPair) == sizeof(GpuPair));
static_assert(offsetof(CUcheckpointGpuPair, oldUuid) == offsetof(GpuPair, from));
static_assert(offsetof(CUcheckpointGpuPair, newUuid) == offsetof(GpuPair, to));
static_assert(offsetof(CUcheckpointRestoreArgs, gpuPairs) == offsetof(RestoreArgs, pairs));
static_assert(offsetof(CUcheckpointRestoreArgs, gpuPairsCount) == offsetof(RestoreArgs, pair_count));
#endif

}  // namespace rekindle::gpu::cuda
