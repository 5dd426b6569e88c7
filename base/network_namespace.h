// Work in the network namespace of another process.
#pragma once

#include <sys/types.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace rekindle {

// What `work` returns, called on a thread that is in the network namespace of `process`; sockets that it
// makes stay there. PermissionDenied without CAP_SYS_ADMIN; NotFound: the process has ended. Thread-safe.
absl::Status InNetworkOf(pid_t process, absl::FunctionRef<absl::Status()> work);

}  // namespace rekindle
