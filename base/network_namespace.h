// Network namespaces: work in that of another process, and new ones.
#pragma once

#include <sys/types.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle {

// What `work` returns, called on a thread that is in the network namespace of `process`; sockets that it
// makes stay there. PermissionDenied without CAP_SYS_ADMIN; NotFound: the process has ended. Thread-safe.
absl::Status InNetworkOf(pid_t process, absl::FunctionRef<absl::Status()> work);

// A new one for setns, with nothing but a loopback, which is up if `loopback`. It goes with the last process
// in it, and this descriptor. PermissionDenied without CAP_SYS_ADMIN. Thread-safe.
absl::StatusOr<UniqueFd> NewNetwork(bool loopback);

// Of the calling thread's network namespace. Needs CAP_NET_ADMIN there. Thread-safe.
absl::Status BringUpLoopback();

}  // namespace rekindle
