// The driver as the rest of Rekindle sees it: calls with a deadline, made by a helper process that is started
// at the first call, keeps the driver initialised, and is killed and replaced when a call hangs in it. (The
// driver's checkpoint has no time-out of its own.) If this process dies, its helper puts back every process
// that was moved and not settled.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "gpu_state/gpu_device.h"
#include "gpu_state/helper_protocol.h"
#include "gpu_state/keeper_client.h"
#include "gpu_state/process_state.h"

namespace rekindle::gpu {

struct DriverInfo {
  int cuda_version = 0;  // 13000: CUDA 13.0
  std::string driver;    // "580.95.05"; empty where the management library is missing
  std::string means;     // "libcuda.so.1", "cuda-checkpoint"
};

struct ActOptions {
  absl::Duration lock_timeout = absl::Seconds(10);
  std::vector<std::pair<std::string, std::string>> pairs;  // of a restore: old and new UUID of each GPU
};

struct DriverClientOptions {
  std::string program;  // rekindle-gpu-helper; empty: it is looked for beside our own program
  // Gives a descriptor that the helper keeps for as long as it lives (Ledger::Enlist); null: none. Where it
  // can't, a helper answers questions without it, and does nothing else.
  std::function<absl::StatusOr<int>()> lock;
  // What the helper is told of the ledger, if it is to look for room before it puts back what we had moved;
  // and how long it then waits for that.
  std::string ledger_directory = "";
  absl::Duration room_timeout = absl::ZeroDuration();
};

// Thread-safe. Errors of one process are those of CheckpointDriver; besides, Unavailable: no answer in time,
// or the helper died, and the call may have been carried out or not. NVIDIA warns that a caller which is
// killed in the middle can put the driver's part in the process out of step: its answer may go to the next
// caller. So the state of such a process is asked until two answers in turn agree.
class DriverClient {
 public:
  explicit DriverClient(DriverClientOptions options);
  ~DriverClient();  // the helper ends; what was moved and not settled goes back

  // Initialises the driver if that has not been done. NotFound, Unimplemented: no or no capable driver.
  absl::StatusOr<DriverInfo> Info();
  absl::StatusOr<DeviceView> Devices();

  // Of several processes at once, for one of several that work together may wait for another. One result for
  // each, in their order. While somebody moves a process's memory some drivers tell its state only at the end
  // of that: a question without an answer is left with the helper, which is not killed for it. Of a process
  // with a few such, nothing more is asked by who only wants to show it.
  enum class Purpose { kToAct, kToShow };
  std::vector<absl::StatusOr<ProcessState>> States(absl::Span<const pid_t> pids, absl::Duration timeout,
                                                   Purpose purpose = Purpose::kToAct);
  // The threads in which the driver works in them. Does not need them to run.
  absl::StatusOr<std::vector<RestoreThread>> RestoreThreads(absl::Span<const pid_t> pids,
                                                            absl::Duration timeout);
  // The same for each by itself, in their order. NotFound: there is none.
  std::vector<absl::StatusOr<RestoreThread>> EachRestoreThread(absl::Span<const pid_t> pids,
                                                               absl::Duration timeout);
  std::vector<absl::Status> Act(Action action, absl::Span<const pid_t> pids, const ActOptions& options,
                                absl::Duration timeout);

  // These stay as they are when we die.
  void Settle(absl::Span<const pid_t> pids);

 private:
  class Helper;

  std::vector<absl::StatusOr<HelperAnswer>> Call(std::vector<HelperRequest> requests, absl::Duration timeout);
  bool HasOpenQuestions(pid_t pid) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<absl::StatusOr<ProcessState>> StatesOnce(absl::Span<const pid_t> pids, absl::Duration timeout);
  absl::StatusOr<ProcessState> StateOutOfStep(pid_t pid, const Deadline& deadline);
  absl::StatusOr<std::shared_ptr<Helper>> CurrentHelper(bool moves = false) ABSL_LOCKS_EXCLUDED(mutex_);
  void Retire(const std::shared_ptr<Helper>& helper) ABSL_LOCKS_EXCLUDED(mutex_);

  const DriverClientOptions options_;
  absl::Mutex mutex_;
  std::shared_ptr<Helper> helper_ ABSL_GUARDED_BY(mutex_);
  bool may_move_ ABSL_GUARDED_BY(mutex_) = false;  // it has its lock, if there is one
  bool acts_ ABSL_GUARDED_BY(mutex_) = false;      // it has been asked to move something
  DriverInfo info_ ABSL_GUARDED_BY(mutex_);
  std::set<pid_t> out_of_step_ ABSL_GUARDED_BY(mutex_);  // a call of theirs had no answer
};

}  // namespace rekindle::gpu
