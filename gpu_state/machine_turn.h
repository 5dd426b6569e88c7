// Who may put memory onto a GPU now, on the whole machine: Rekindles of several users, and of several runtime
// folders, share nothing but the kernel. The name of a socket without a file (unix(7): abstract), which is
// gone with its process and which everybody may take. Each network namespace has its own.
#pragma once

#include <sys/types.h>

#include <memory>
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
  // The turn that this process has already, which then lasts until both have gone. Nothing: it has none.
  static std::optional<MachineTurn> Join(const std::string& gpu);

 private:
  explicit MachineTurn(std::shared_ptr<const UniqueFd> socket) : socket_(std::move(socket)) {}
  std::shared_ptr<const UniqueFd> socket_;
};

struct TurnHolder {
  pid_t pid = 0;  // 0: in another PID namespace
  uid_t uid = 0;
};
// Nothing: nobody has it, or who has it is not to be found out.
std::optional<TurnHolder> HolderOfMachineTurn(const std::string& gpu);

}  // namespace rekindle::gpu
