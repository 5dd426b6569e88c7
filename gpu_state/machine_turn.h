// Who may put memory onto a GPU now, on the whole machine: Rekindles of several users, and of several runtime
// folders, share nothing but the kernel. The name of a socket without a file (unix(7): abstract), which is
// gone with its process and which everybody may take. Each network namespace has its own.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::gpu {

// Lasts as long as this. Not thread-safe.
class MachineTurn {
 public:
  // Unavailable: somebody has it. A machine that gives no such names to us makes us wait for nobody.
  static absl::StatusOr<MachineTurn> Take(const std::string& gpu);

 private:
  explicit MachineTurn(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

struct TurnHolder {
  pid_t pid = 0;  // 0: in another PID namespace
  uid_t uid = 0;
};
// Nothing: nobody has it, or who has it is not to be found out.
std::optional<TurnHolder> HolderOfMachineTurn(const std::string& gpu);

}  // namespace rekindle::gpu
