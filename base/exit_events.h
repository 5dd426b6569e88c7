// How processes end that are not our children, on kernels whose pidfds don't tell (before Linux 6.15): by the
// process events of the kernel's connector (CONFIG_PROC_EVENTS). It gives them to root on the machine itself,
// to nobody in a container or a PID namespace.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"

namespace rekindle {

// Thread-safe. No thread of its own: the kernel keeps what was not asked for yet, of expected processes
// alone.
class ExitEvents {
 public:
  // Pidfds tell as much (ExitOfEnded, pidfd.h): by the kernel's version.
  static bool PidfdsTell();

  // Unavailable: this kernel tells nothing, or not us.
  static absl::StatusOr<std::unique_ptr<ExitEvents>> Listen();

  // The end of this process is kept from now on, until it is taken.
  absl::Status Expect(pid_t pid) ABSL_LOCKS_EXCLUDED(mutex_);
  // How one that was expected has ended; it is not expected any longer. The kernel tells it a moment after
  // the process can be waited for, which is waited for here. Nothing: it has not, or the kernel had too much
  // to tell.
  std::optional<ExitState> Take(pid_t pid) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit ExitEvents(UniqueFd socket) : socket_(std::move(socket)) {}
  // What comes in is of those alone that are expected.
  absl::Status Filter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd socket_;
  absl::Mutex mutex_;
  std::map<pid_t, std::optional<ExitState>> expected_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle
