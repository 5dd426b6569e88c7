// Rekindle's side of a thread keeper (thread_keeper.h): the threads of a job stand still while its device
// memory moves, and the driver's own run.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/stoppable_thread.h"
#include "base/unique_fd.h"
#include "gpu_state/device_areas.h"
#include "gpu_state/thread_keeper.h"

namespace rekindle::gpu {

// The thread in which the driver works in a process.
struct RestoreThread {
  pid_t pid = 0, thread = 0;
  uint64_t device_bytes = 0;  // that the process has on GPUs, as far as known
};

// Of our number of a thread: the one in another PID namespace, 0: it has gone. Empty: the same.
using ThreadNumber = std::function<pid_t(pid_t)>;

// Thread-compatible.
class ThreadKeeper {
 public:
  // A program of ours is the keeper: all threads of `pids` stand still until this goes; where that is the one
  // that watches them, they do not run in between. `areas`: of their device memory, as far as it is out,
  // which a later Watch() needs. FailedPrecondition: somebody else traces one (a debugger, CRIU).
  static absl::StatusOr<std::unique_ptr<ThreadKeeper>> Hold(absl::Span<const pid_t> pids,
                                                            const DeviceAreas& areas = {});
  // CRIU is, at the other end of `socket`, and knows threads by other numbers.
  explicit ThreadKeeper(UniqueFd socket, ThreadNumber number_there = nullptr);
  // A thread of a parked process stands where it needs its device memory (thread_watch.h), after a Hold().
  static bool WaitsForMemory(pid_t pid);
  // Is it parked and watched?
  static bool IsWatched(pid_t pid);
  // Its device memory is back.
  static void EndWatchOver(pid_t pid);
  ~ThreadKeeper();

  // These run, until Pause(); those of processes that have ended are passed over. With `for_device_memory`
  // what they map, for that is device memory to be, is of huge pages, which are there when they go on; not
  // where REKINDLE_GPU_HUGE_PAGES is 0 in our environment.
  absl::Status Run(absl::Span<const RestoreThread> threads, bool for_device_memory);
  // They stand still again.
  absl::Status Pause();
  // One that was told to run may not stand: CRIU stops (SIGSTOP) those that use a GPU where one does not.
  bool may_run() const { return may_run_; }
  // All run on, watched by the program, which lives as long as they do, or until somebody else's Hold(), and
  // has `note` for whoever asks.
  absl::Status Watch(const std::string& note = "");
  // What the watch over a parked process of ours has noted; empty: nothing, or there is none.
  static std::string NoteOver(pid_t pid);
  // The processes that watch parked ones of ours, and have a note: NoteOf each.
  static std::vector<pid_t> Watchers();
  static std::string NoteOf(pid_t watcher);
  // All go on; `well`: the device memory is there, else threads that need it stand still (thread_watch.h). Of
  // CRIU: the work is done, or has failed.
  void End(bool well);
  // Of CRIU: it has failed, and the device memory is out: those that use a GPU are stopped (SIGSTOP) before
  // they go on.
  void EndAway();

 private:
  void Read();
  // Of what a thread has mapped: while one waits for that, others may, too.
  void Populate(const KeeperMessage& mapped, pid_t process) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before anything is said that lets go of threads which wait for that: they would find zeros where they
  // have written. Until the next Run() nothing is populated.
  void StopPopulating() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RunOne(const RestoreThread& thread, bool for_device_memory);
  absl::Status Send(KeeperWord what, int32_t id, uint64_t bytes = 0, uint64_t address = 0);
  // The next word of that kind. Unavailable: the keeper has gone. DeadlineExceeded: it says nothing.
  absl::Status Await(KeeperWord what) ABSL_LOCKS_EXCLUDED(mutex_);

  UniqueFd socket_, note_;
  const ThreadNumber number_there_;
  absl::Mutex mutex_;
  std::map<pid_t, pid_t> processes_ ABSL_GUARDED_BY(mutex_);  // of threads that were told to run
  std::map<uint32_t, int32_t> words_ ABSL_GUARDED_BY(mutex_);
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ = false, may_run_ = false;
  // By the thread that waits, which maps no more.
  std::map<int32_t, std::thread> populating_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> stop_populating_{false};
  std::thread reader_;
};

// Waits in a folder for the CRIU that has our plugin, and has `handler` do what there is to do at each of its
// moments, in a thread of its own.
class KeeperListener {
 public:
  using Handler = std::function<absl::Status(KeeperMoment moment, bool failed, ThreadKeeper& keeper)>;
  // Where CRIU is in a container: how it sees us.
  struct Elsewhere {
    bool mounts = false;        // it finds the folder only as its working directory
    ThreadNumber number_there;  // it is in another PID namespace
  };
  static absl::StatusOr<std::unique_ptr<KeeperListener>> Listen(const std::string& folder, Elsewhere criu,
                                                                Handler handler);
  ~KeeperListener();

  // After CRIU's end. An error: at one of its moments, or more, it found nobody who answered, which it takes
  // for our end: it may have stopped (SIGSTOP) those that use a GPU.
  absl::Status End();

  // "K=V", for CRIU.
  std::string variable() const;

 private:
  KeeperListener(std::string path, Elsewhere criu, Handler handler)
      : path_(std::move(path)), criu_(std::move(criu)), handler_(std::move(handler)) {}
  void Serve();
  void Miss(const absl::Status& why);

  const std::string path_;
  const Elsewhere criu_;
  const Handler handler_;
  UniqueFd listener_;
  absl::Status missed_;  // the first one; the thread's until its end
  StoppableThread thread_;
};

// Are a job's threads to stand still while its device memory is out? REKINDLE_GPU_HOLD_THREADS is 0 in our
// environment where nobody is to trace them for that, neither CRIU nor the keeper's program, but the watch
// over parked jobs.
bool ThreadsAreHeld();

// Our plugin for CRIU, alone in its folder.
absl::StatusOr<std::string> PluginPath();

}  // namespace rekindle::gpu
