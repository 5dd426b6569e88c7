// What a failure of NVIDIA's cuda-checkpoint means. It ends with 1 for whatever the driver refuses, and
// prints the driver's words between quotation marks: `Could not lock process 7: "device not ready"`, or
// `Error initializing CUDA: "…"` where it was not even let in.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/subprocess.h"

namespace rekindle::gpu {

// Of a run with the arguments `what`, for process `pid`, that did not end well. Says what the utility
// printed. NotFound: the process does not use CUDA, or is gone; the codes of CheckpointDriver for what the
// driver refuses; PermissionDenied: it, or the utility itself, may not; Unimplemented: also an option that
// the utility does not know; Unavailable: it was killed, or crashed, and what it was asked for may have been
// done; Internal: anything else.
absl::Status UtilityFailure(pid_t pid, absl::string_view what, const CommandResult& result);

// Of one that could not be started, or did not end in its time. Never NotFound or DeadlineExceeded, which
// would tell of the process.
absl::Status UtilityNotRun(pid_t pid, absl::string_view what, const absl::Status& status);

}  // namespace rekindle::gpu
