// Which processes use CUDA, as far as /proc and the driver's thread in each tell, and whether the driver can
// be asked of them just now.
#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/process_stat.h"
#include "gpu_state/driver_client.h"

namespace rekindle::gpu {

inline constexpr char kCudaLibrary[] = "libcuda.so";

// Has it loaded the driver's library? Many do to look for a GPU, and use none.
bool MapsCuda(pid_t pid);

// The same of any process of the machine: the driver works in a thread of its own in each that uses it, so of
// those with one thread, which most are, the list of what they have mapped is not made.
bool MayUseCuda(pid_t pid, const ProcessStat& stat);

// Aborted: somebody moves it.
absl::Status IsBeingMovedError(pid_t pid);

// The driver's calls are served by a thread of the process: a stopped one never answers. FailedPrecondition:
// so it is, or frozen, and what lets it go on; Aborted: for a move or an image, which ends.
absl::Status CheckAnswers(pid_t pid);

// Asked of a child that was forked once its parent used CUDA (those that load data for a training), a driver
// may answer for the parent, with which it has all in common but the driver's thread. Takes them out of
// `pids`, of which each has answered.
void LeaveOutForked(DriverClient& driver, absl::Duration timeout, std::vector<pid_t>* pids);

}  // namespace rekindle::gpu
