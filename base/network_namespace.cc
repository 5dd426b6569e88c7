#include "base/network_namespace.h"

#include <fcntl.h>
#include <sched.h>

#include <cerrno>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/status.h"

namespace rekindle {

absl::Status InNetworkOf(pid_t process, absl::FunctionRef<absl::Status()> work) {
  RK_ASSIGN_OR_RETURN(const UniqueFd network, OpenFile(absl::StrCat("/proc/", process, "/ns/net"), O_RDONLY));
  return CatchNoMoreThreads([&] {
    absl::Status status;
    // It ends with its place: one that could not come back would be in a wrong one for ever.
    std::thread([&] {
      status = ::setns(network.get(), CLONE_NEWNET) == 0
                   ? work()
                   : ErrnoStatus(errno, absl::StrCat("entering the network namespace of process ", process));
    }).join();
    return status;
  });
}

}  // namespace rekindle
