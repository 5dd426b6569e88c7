// The CUDA processes of one job, moved together: all to host memory or none, all back or none.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gpu_state/device_areas.h"
#include "gpu_state/driver_client.h"
#include "gpu_state/gpu_device.h"
#include "gpu_state/keeper_client.h"
#include "gpu_state/process_state.h"

namespace rekindle::gpu {

struct SessionOptions {
  absl::Duration lock_timeout = absl::Seconds(10);   // for work under way on the GPU to end
  absl::Duration move_timeout = absl::Minutes(10);   // one move of all memory; beyond it the driver hangs
  absl::Duration query_timeout = absl::Seconds(60);  // a state
  // After a call without an answer: how long the driver may take to tell how things are. A process of which
  // it does not is left as it is.
  absl::Duration recovery_timeout = absl::Seconds(30);
  // What their watch is to keep of processes that stay parked (ThreadKeeper::Watch). Empty: nothing.
  std::function<std::string(absl::Span<const pid_t> pids)> note = nullptr;
};

// Thread-compatible. If our process dies in the middle, the driver's helper brings the job back to running.
class GpuSession {
 public:
  // `driver` outlives this.
  GpuSession(DriverClient& driver, std::vector<pid_t> pids, SessionOptions options);

  // Learns the states. FailedPrecondition when one is failed, or locked, unless it was we who locked it
  // (after a crash).
  enum class Locked { kByOthers, kByUs };
  absl::Status Begin(Locked locked = Locked::kByOthers);

  // The threads in which the driver works are known from here on. Error: it does not tell.
  absl::Status FindThreads();
  // Instead of what the options say; before they move.
  void AllowForMove(absl::Duration timeout) { options_.move_timeout = timeout; }
  // What they have on GPUs, as far as known; before MoveToHost.
  void NoteUses(absl::Span<const GpuUse> uses);
  // Where their device memory was mapped; before anything that has a keeper hold them.
  void NoteAreas(DeviceAreas areas) { areas_ = std::move(areas); }
  // CRIU has all threads stand still, and lets these run from here to LetStand(): the calls below are made
  // between the two. Otherwise a keeper of ours has them stand still for each move of memory.
  absl::Status LetRun(ThreadKeeper& keeper, bool for_device_memory);
  absl::Status LetStand();

  // The CUDA calls of all wait. DeadlineExceeded: work on the GPU did not end within the lock's time-out. On
  // failure all are as they were at Begin.
  absl::Status Lock();
  // All processes to checkpointed: their device memory is host memory of theirs, their CUDA calls wait. On
  // failure all are as they were at Begin; where even that failed, the message says which and what to do.
  // Locks those that are not yet.
  absl::Status MoveToHost();

  // After MoveToHost without CRIU as the keeper, the threads stand still, until they are let go, or run on
  // and are watched (thread_watch.h): those of a process that stays where it is. On the way back they stand,
  // too, or before where somebody has them stopped who is to let them go on.
  void LetGo();
  void HoldForRestore() { HoldOthers(Action::kRestore); }
  void Watch();
  // Before CRIU comes to trace those that are parked. FailedPrecondition: a thread of one stands where it
  // needs its device memory.
  absl::Status EndWatch();

  // All processes to running, on the same GPUs or on others (old UUID, new UUID); their states are verified.
  // On failure all are checkpointed, or locked where even that failed: the data is safe, and the move can be
  // tried again. But of which the driver has lost the state, and where it gives no answer of one: then no
  // further call is made, and all are left as they are.
  // With `exact` the driver is asked for these pairs alone, where it may refuse them because they do not name
  // each GPU that a process sees.
  absl::Status MoveToDevice(const std::vector<std::pair<std::string, std::string>>& pairs,
                            bool exact = false);

  // Those of Begin that were running go back to running, all or none; the others stay. For after MoveToHost.
  absl::Status PutBack();

  // As of the last call; no question to the driver.
  bool all_in(ProcessState state) const;
  // The driver has given no answer to a call for one of them, nor told its state since.
  bool hangs() const;
  std::vector<pid_t> RunningAtBegin() const;
  std::vector<pid_t> NotRunning() const;  // of those that live; also of which the driver gives no answer

 private:
  struct Member {
    pid_t pid = 0;
    ProcessState before = ProcessState::kRunning;  // at Begin
    ProcessState now = ProcessState::kRunning;
    bool gone = false;
    bool unanswered = false;  // its last call; nobody knows how that ended
    bool hangs = false;       // nor does the driver tell its state since: it gets no call any more
  };

  // `action` on all members that `chosen` accepts, at once. The first error; `now` says what became of each.
  template <typename Chosen>
  absl::Status ActOn(Action action, Chosen chosen, const ActOptions& options = {});
  // By process. Those that are left out were not asked for it: an earlier one has failed, and what was done
  // is undone next.
  std::map<pid_t, absl::Status> ActInRounds(Action action, absl::Span<const pid_t> pids, ActOptions options,
                                            absl::Duration timeout);
  // Where not all of them have answered to a lock in time. The driver may answer nothing of a process, not
  // even its state, as long as one that it works together with (NCCL) is locked, and lock it when that is
  // not.
  void UndoLocks(absl::Span<Member* const> members, const std::map<pid_t, absl::Status>& results);
  absl::Status AskStates(absl::Duration timeout);
  absl::Status AskStates() { return AskStates(LeftOf(options_.query_timeout)); }
  // No more of that than the recovery may take that is under way.
  absl::Duration LeftOf(absl::Duration timeout) const;
  // After an `action` of which nobody knows how it ended: until the states that the driver tells fit what
  // their own memory was before, by process. Unavailable: they do not.
  absl::Status AskUntilPlausible(Action action, const std::map<pid_t, uint64_t>& own_bytes);
  bool IsPlausible(const Member& member, Action action, uint64_t own_bytes) const;
  absl::Status Run(ThreadKeeper& keeper, std::vector<RestoreThread> threads, bool for_device_memory) const;
  // All threads but the driver's own stand still, where that can be had, from now until LetGo() or Watch().
  void HoldOthers(Action action);
  // Those that `chosen` accepts to running, all or none; verified. Those of which the driver has lost the
  // state stay failed, are told of, and keep nobody back.
  template <typename Chosen>
  absl::Status BringUp(Chosen chosen, const ActOptions& restore = {}, bool exact = false);

  DriverClient& driver_;
  const std::vector<pid_t> pids_;
  SessionOptions options_;
  std::vector<Member> members_;
  // Of the recovery after a call without an answer; infinite: there was none, or all are known again.
  absl::Time recovers_until_ = absl::InfiniteFuture();
  std::unique_ptr<ThreadKeeper> own_keeper_;
  std::vector<pid_t> held_;  // by that
  std::vector<RestoreThread> threads_;
  struct OnDevices {
    uint64_t bytes = 0;
    size_t gpus = 0;
  };
  std::map<pid_t, OnDevices> on_devices_;  // of those of which it is known
  DeviceAreas areas_;
  ThreadKeeper* keeper_ = nullptr;  // CRIU, between LetRun and LetStand
};

}  // namespace rekindle::gpu
