// rekindle-gpu-helper: initialises the NVIDIA driver once and makes its checkpoint calls, each on a thread of
// its own, for the process at the other end of descriptor 3. A call that hangs hangs here, where it can be
// killed. When that process dies, everything this one has moved goes back to where it was, if there is room.
//   rekindle-gpu-helper [LEDGER MILLISECONDS]: where it is noted what that needs, and how long to wait for
//   room.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/deadlock_checks.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "gpu_state/await_room.h"
#include "gpu_state/checkpoint_driver.h"
#include "gpu_state/device_inventory.h"
#include "gpu_state/device_plan.h"
#include "gpu_state/helper_protocol.h"
#include "gpu_state/keeper_client.h"
#include "gpu_state/launch_jobs.h"
#include "gpu_state/ledger.h"

namespace rekindle::gpu {
namespace {

// After our master's death: how long calls under way may still take, and then putting things back.
constexpr absl::Duration kUnderWayMayTake = absl::Minutes(5);
constexpr absl::Duration kLettingGoMayTake = absl::Seconds(40);
constexpr absl::Duration kTryAgainEvery = absl::Milliseconds(20);
// To bring back all of a job: as often as who moves it well tries it.
constexpr int kAttemptsToPutBack = 2;
constexpr unsigned kPuttingBackMayTakeSeconds = 300;
// Before that: to have threads stand still, and for calls under way to end, within what these have.
constexpr unsigned kHoldingMayTakeSeconds = 400;
// Whatever of Rekindle runs next waits no longer for us.
constexpr absl::Duration kMostWaitForRoom = absl::Seconds(30);

// The driver may name a thread as its own process sees it, which can be in another PID namespace.
absl::StatusOr<pid_t> ThreadNamed(pid_t pid, pid_t theirs) {
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(absl::StrCat("/proc/", pid, "/task")));
  pid_t inside = 0;
  for (const std::string& name : names) {
    pid_t thread = 0;
    if (!absl::SimpleAtoi(name, &thread)) continue;
    if (thread == theirs) return thread;
    const std::vector<pid_t> numbers = NamespaceNumbers(absl::StrCat(pid, "/task/", thread));
    if (!numbers.empty() && numbers.back() == theirs) inside = thread;
  }
  if (inside != 0) return inside;
  return absl::NotFoundError(absl::StrCat("process ", pid, " has no thread ", theirs,
                                          ", in which the NVIDIA driver says that it works"));
}

class Helper {
 public:
  Helper(std::string ledger, absl::Duration room_timeout)
      : ledger_(std::move(ledger)), room_timeout_(std::min(room_timeout, kMostWaitForRoom)) {}

  // Until the other end closes.
  void Serve() {
    std::string packet(kMaxPacketBytes, '\0');
    for (;;) {
      const ssize_t n = ::recv(kHelperSocket, packet.data(), packet.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      auto request = HelperRequest::Decode(absl::string_view(packet.data(), static_cast<size_t>(n)));
      if (!request.ok()) {
        Log(LogLevel::kError, request.status().message());
        return;
      }
      {
        absl::MutexLock lock(&mutex_);
        if (request->what == HelperRequest::What::kAct) ++under_way_;
        if (IsLock(*request)) ++locking_;
      }
      const absl::Status begun = CatchNoMoreThreads([&] {
        std::thread([this, r = *request] { Work(r); }).detach();
        return absl::OkStatus();
      });
      if (begun.ok()) continue;
      HelperAnswer refusal;
      refusal.id = request->id;
      refusal.status = begun;
      Answer(*request, refusal);
    }
  }

  // Every process that was moved and not settled runs again.
  void PutBack() {
    const absl::StatusOr<std::string> mover = ledger_.directory().empty() ? "" : ledger_.Inherit(kHelperLock);
    {
      absl::MutexLock lock(&mutex_);
      if (!mover.ok() && !moved_.empty()) Log(LogLevel::kWarning, mover.status().message());
    }
    {
      // A thread that stands within a call of CUDA's keeps the driver from locking, which takes nothing away
      // and has a limit of its own.
      absl::MutexLock lock(&mutex_);
      AwaitUntil(mutex_,
                 absl::Condition(
                     +[](int* locking) { return *locking == 0; }, &locking_),
                 Deadline(kUnderWayMayTake));
    }
    ::alarm(kHoldingMayTakeSeconds);
    if (mover.ok() && !mover->empty()) AddThoseNoted(*mover);
    // First: a call under way waits for the driver's thread, which CRIU or a keeper has left standing.
    const std::vector<Held> held = HoldThreads();
    std::map<pid_t, Moved> moved;
    {
      absl::MutexLock lock(&mutex_);
      AwaitUntil(mutex_,
                 absl::Condition(
                     +[](int* under_way) { return *under_way == 0; }, &under_way_),
                 Deadline(kUnderWayMayTake));
      moved = moved_;
    }
    ::alarm(kPuttingBackMayTakeSeconds);
    const std::vector<Job> jobs = JobsOf(moved);
    InParallel(jobs.size(), [&](size_t i) { PutBack(jobs[i]); });
    if (held.empty()) return;
    auto is_back = [this](const auto& process) {
      const auto state = driver_.ok() ? (*driver_)->State(process.first) : driver_.status();
      return !state.ok() || *state == ProcessState::kRunning;
    };
    std::set<pid_t> away;  // all of a job of which one is
    for (const Job& job : jobs) {
      if (std::all_of(job.moved.begin(), job.moved.end(), is_back)) continue;
      for (const auto& [pid, how] : job.moved) away.insert(pid);
    }
    // CRIU's plugin has stopped them, or the capture that is no more.
    for (const Held& job : held) {
      bool all_back = true;
      for (const auto& process : job.starts) {
        const auto& [pid, start] = process;
        const bool back = away.count(pid) == 0 && is_back(process);
        all_back &= back;
        const auto stat = ReadProcessStat(pid);
        if (back && stat.ok() && stat->start_ticks == start) ::kill(pid, SIGCONT);
      }
      job.keeper->End(all_back);
    }
  }

 private:
  struct Moved {
    uint64_t start = 0;                // names the process together with the PID
    uint64_t number = 0;               // in the order in which they left
    std::vector<cuda::GpuPair> pairs;  // onto which GPUs it was to go, if not onto those it was on
  };

  // Processes that go back all or none, and what of them the ledger says.
  struct Job {
    std::map<pid_t, Moved> moved;
    std::vector<GpuUse> uses;
  };

  // Of a job, whose threads stand still, when its processes started.
  struct Held {
    std::unique_ptr<ThreadKeeper> keeper;
    std::map<pid_t, uint64_t> starts;
  };

  static void Add(pid_t pid, const Moved& how, absl::Span<const GpuUse> uses, Job* job) {
    job->moved[pid] = how;
    job->uses.insert(job->uses.end(), uses.begin(), uses.end());
  }

  std::vector<Job> JobsOf(const std::map<pid_t, Moved>& moved) {
    std::map<pid_t, Job> jobs;
    std::optional<std::vector<GpuDevice>> devices;  // asked for once
    const auto look = [this] {
      auto inventory = Inventory();
      return inventory.ok() ? (*inventory)->Look().value_or(DeviceView()).devices : std::vector<GpuDevice>();
    };
    for (const auto& [pid, how] : moved) {
      const auto entries = ledger_.Of({pid});
      // Parked by another helper of our master's since.
      if (entries.ok() && !entries->empty() && entries->front().goal == LedgerEntry::Goal::kParked) continue;
      if (entries.ok() && !entries->empty() && !entries->front().unplaced) {
        Add(pid, how, entries->front().uses, &jobs[entries->front().job]);
      } else {
        // A job has a session of its own, mostly.
        const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
        if (!devices) devices = look();
        Add(pid, how, UnknownUses(pid, *devices), &jobs[stat.ok() ? stat->session : pid]);
      }
    }
    std::vector<Job> all;
    for (auto& [root, job] : jobs) all.push_back(std::move(job));
    return all;
  }

  // What our master was moving goes back as well: those that a helper before us has moved, which hung and was
  // replaced, and of a job on its way back those whose turn had not come.
  void AddThoseNoted(const std::string& mover) {
    std::map<pid_t, Moved> moved;
    {
      absl::MutexLock lock(&mutex_);
      moved = moved_;
    }
    std::map<pid_t, std::vector<LedgerEntry>> jobs;  // by root
    std::map<pid_t, std::vector<cuda::GpuPair>> pairs;
    for (LedgerEntry& entry : ledger_.List().value_or(std::vector<LedgerEntry>())) {
      if (entry.mover != mover || entry.goal != LedgerEntry::Goal::kRunning || entry.unplaced) continue;
      const auto known = moved.find(entry.pid);
      if (known == moved.end()) {
        jobs[entry.job].push_back(std::move(entry));
      } else if (!known->second.pairs.empty()) {
        pairs[entry.job] = known->second.pairs;
      }
    }
    for (auto& [job, entries] : jobs) {
      // As whoever moved them had listed them.
      const std::vector<pid_t> tree = ProcessTree(job);
      std::stable_sort(entries.begin(), entries.end(), [&tree](const LedgerEntry& a, const LedgerEntry& b) {
        return std::find(tree.begin(), tree.end(), a.pid) < std::find(tree.begin(), tree.end(), b.pid);
      });
      for (const LedgerEntry& entry : entries) {
        absl::MutexLock lock(&mutex_);
        moved_.emplace(entry.pid, Moved{entry.start_ticks, ++moves_, pairs[job]});
      }
    }
  }

  // Another helper of our master's may be at the same job.
  absl::StatusOr<std::vector<Ledger::Turn>> TakeTurns(const Job& job) {
    std::vector<Ledger::Turn> turns;
    if (ledger_.directory().empty()) return turns;
    const Deadline deadline(kMostWaitForRoom);
    for (const auto& [pid, how] : job.moved) {
      for (;;) {
        absl::StatusOr<Ledger::Turn> turn = ledger_.TakeTurn(pid);
        if (turn.ok()) {
          turns.push_back(*std::move(turn));
          break;
        }
        // Where the folder can't be written nobody has one.
        if (!absl::IsUnavailable(turn.status())) break;
        if (deadline.passed()) return turn.status();
        absl::SleepFor(kTryAgainEvery);
      }
    }
    return turns;
  }

  void PutBack(const Job& job) {
    const absl::StatusOr<std::vector<Ledger::Turn>> turns = TakeTurns(job);
    if (!turns.ok()) return;
    std::vector<pid_t> out;
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const auto& [pid, how] : job.moved) {
      const auto state = driver_.ok() ? (*driver_)->State(pid) : driver_.status();
      if (state.ok() && *state == ProcessState::kCheckpointed) out.push_back(pid);
      for (const cuda::GpuPair& pair : how.pairs)
        pairs.emplace_back(FormatUuid(pair.from), FormatUuid(pair.to));
    }
    absl::StatusOr<RoomTurns> room = RoomTurns();
    if (!out.empty()) {
      RoomWait wait;
      wait.for_room = room_timeout_;
      wait.for_turns = kMostWaitForRoom;
      wait.look = [this]() -> absl::StatusOr<DeviceView> {
        RK_ASSIGN_OR_RETURN(DeviceInventory * inventory, Inventory());
        return inventory->Look();
      };
      room = AwaitRoom(ledger_, RoomFor(UsesOf(job.uses, out), pairs, 0), out, wait);
    }
    if (!room.ok()) {
      // The driver would lose what does not fit. Out it is safe, and whatever comes next tries again.
      Log(LogLevel::kError,
          absl::StrCat("what a dead Rekindle had moved stays in host memory: ", room.status().message()));
      return;
    }
    // Which says for the processes of a launch job in which they come back.
    std::vector<pid_t> pids;
    for (const auto& [pid, how] : job.moved) pids.push_back(pid);
    std::sort(pids.begin(), pids.end(),
              [&job](pid_t a, pid_t b) { return job.moved.at(a).number < job.moved.at(b).number; });
    const std::vector<std::vector<pid_t>> rounds = RoundsOf(pids);
    const auto bring = [&](Way way) {
      for (const std::vector<pid_t>& round : rounds) {
        InParallel(round.size(), [&](size_t i) { Bring(round[i], job.moved.at(round[i]), way); });
      }
    };
    for (int attempt = 0; attempt < kAttemptsToPutBack && IsAnyOut(job); ++attempt) bring(Way::kOntoDevice);
    // Not some without the others: they may wait for each other.
    if (!IsAnyOut(job)) return bring(Way::kRunning);
    Log(LogLevel::kError,
        "a job that a dead Rekindle had moved can't go back as a whole: all of it stays in host memory");
    bring(Way::kOut);
  }

  enum class Way { kOntoDevice, kRunning, kOut };

  // One that lives.
  bool IsAnyOut(const Job& job) const {
    return std::any_of(job.moved.begin(), job.moved.end(), [this](const auto& process) {
      const auto& [pid, how] = process;
      const auto stat = ReadProcessStat(pid);
      if (!stat.ok() || stat->start_ticks != how.start || !driver_.ok()) return false;
      const auto state = (*driver_)->State(pid);
      return state.ok() && *state == ProcessState::kCheckpointed;
    });
  }

  void Work(const HelperRequest& request) {
    HelperAnswer answer;
    answer.id = request.id;
    answer.status = Do(request, &answer);
    Answer(request, answer);
  }

  void Answer(const HelperRequest& request, const HelperAnswer& answer) {
    const std::vector<std::string> packets = answer.Packets();
    absl::MutexLock lock(&mutex_);
    for (const std::string& packet : packets) {
      while (::send(kHelperSocket, packet.data(), packet.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
      }
    }
    if (request.what == HelperRequest::What::kAct) --under_way_;
    if (IsLock(request)) --locking_;
  }

  absl::Status Do(const HelperRequest& request, HelperAnswer* answer) {
    RK_ASSIGN_OR_RETURN(CheckpointDriver * driver, Driver());
    switch (request.what) {
      case HelperRequest::What::kHello:
        answer->driver_version = driver->version();
        answer->means = driver->means();
        if (auto inventory = Inventory(); inventory.ok()) answer->driver = (*inventory)->driver_version();
        return absl::OkStatus();
      case HelperRequest::What::kState: {
        RK_ASSIGN_OR_RETURN(answer->state, driver->State(request.pid));
        return absl::OkStatus();
      }
      case HelperRequest::What::kThread: {
        RK_ASSIGN_OR_RETURN(const pid_t theirs, driver->RestoreThread(request.pid));
        RK_ASSIGN_OR_RETURN(answer->thread, ThreadNamed(request.pid, theirs));
        absl::MutexLock lock(&mutex_);
        threads_[request.pid] = answer->thread;
        return absl::OkStatus();
      }
      case HelperRequest::What::kAct:
        return Act(*driver, request);
      case HelperRequest::What::kSettle: {
        absl::MutexLock lock(&mutex_);
        moved_.erase(request.pid);
        return absl::OkStatus();
      }
      case HelperRequest::What::kDevices: {
        RK_ASSIGN_OR_RETURN(DeviceInventory * inventory, Inventory());
        RK_ASSIGN_OR_RETURN(answer->view, inventory->Look());
        return absl::OkStatus();
      }
    }
    return absl::InternalError("unknown request");
  }

  absl::Status Act(CheckpointDriver& driver, const HelperRequest& request) {
    std::vector<cuda::GpuPair> pairs;
    for (const auto& [from, to] : request.pairs) {
      cuda::GpuPair pair = {};
      RK_ASSIGN_OR_RETURN(pair.from, ParseUuid(from));
      RK_ASSIGN_OR_RETURN(pair.to, ParseUuid(to));
      pairs.push_back(pair);
    }
    RK_ASSIGN_OR_RETURN(ProcessStat stat, ReadProcessStat(request.pid));
    if (request.action != Action::kUnlock) {
      // Before the call: it may succeed without our hearing of it.
      absl::MutexLock lock(&mutex_);
      Moved& moved = moved_[request.pid];
      if (moved.start != stat.start_ticks) moved = {stat.start_ticks, ++moves_, {}};
      if (request.action == Action::kRestore) moved.pairs = pairs;
    }
    switch (request.action) {
      case Action::kLock: {
        absl::Status status = driver.Lock(request.pid, absl::Milliseconds(request.timeout_ms));
        if (!status.ok()) Forget(request.pid);
        return status;
      }
      case Action::kCheckpoint:
        return driver.Checkpoint(request.pid);
      case Action::kRestore:
        return driver.Restore(request.pid, pairs);
      case Action::kUnlock: {
        absl::Status status = driver.Unlock(request.pid);
        if (status.ok()) Forget(request.pid);
        return status;
      }
    }
    return absl::InternalError("unknown action");
  }

  static bool IsLock(const HelperRequest& request) {
    return request.what == HelperRequest::What::kAct && request.action == Action::kLock;
  }

  void Forget(pid_t pid) {
    absl::MutexLock lock(&mutex_);
    moved_.erase(pid);
  }

  // In which the driver works.
  absl::StatusOr<pid_t> ThreadOf(pid_t pid) ABSL_LOCKS_EXCLUDED(mutex_, driver_mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (const auto known = threads_.find(pid); known != threads_.end()) return known->second;
    }
    RK_ASSIGN_OR_RETURN(CheckpointDriver * driver, Driver());
    RK_ASSIGN_OR_RETURN(const pid_t theirs, driver->RestoreThread(pid));
    return ThreadNamed(pid, theirs);
  }

  // A thread that needs its device memory before that is back can die of it. Those that have ended, and those
  // of which the driver does not tell its thread, are left out.
  std::vector<Held> HoldThreads() {
    std::map<pid_t, Moved> moved;
    {
      absl::MutexLock lock(&mutex_);
      moved = moved_;
    }
    const std::vector<Job> jobs = JobsOf(moved);
    std::vector<Held> held(jobs.size());
    // One that does not stand still keeps no other from it.
    InParallel(jobs.size(), [&](size_t i) { HoldThreadsOf(jobs[i], &held[i]); });
    std::erase_if(held, [](const Held& job) { return job.keeper == nullptr; });
    return held;
  }

  void HoldThreadsOf(const Job& job, Held* held) {
    std::vector<pid_t> pids;
    std::vector<RestoreThread> threads;
    for (const auto& [pid, how] : job.moved) {
      const auto stat = ReadProcessStat(pid);
      if (!stat.ok() || stat->start_ticks != how.start) continue;
      const absl::StatusOr<pid_t> thread = ThreadOf(pid);
      if (!thread.ok()) continue;
      pids.push_back(pid);
      threads.push_back({pid, *thread});
      held->starts[pid] = how.start;
    }
    if (pids.empty()) return;
    // CRIU, which our master's end stops, lets go of them first.
    const Deadline deadline(kLettingGoMayTake);
    for (;;) {
      auto keeper = ThreadKeeper::Hold(pids);
      absl::Status status = keeper.status();
      if (status.ok()) status = (*keeper)->Run(threads, /*for_device_memory=*/false);
      if (status.ok()) {
        held->keeper = *std::move(keeper);
        return;
      }
      if (deadline.passed()) {
        Log(LogLevel::kWarning,
            absl::StrCat("the threads of a job run while its device memory is out: ", status.message()));
        return;
      }
      absl::SleepFor(kTryAgainEvery);
    }
  }

  void Bring(pid_t pid, const Moved& moved, Way way) {
    auto stat = ReadProcessStat(pid);
    if (!stat.ok() || stat->start_ticks != moved.start || !driver_.ok()) return;
    auto state = (*driver_)->State(pid);
    absl::Status status = state.status();
    if (way == Way::kOntoDevice && state.ok() && *state == ProcessState::kCheckpointed)
      status = (*driver_)->Restore(pid, moved.pairs);
    if (way == Way::kRunning && state.ok() && *state == ProcessState::kLocked)
      status = (*driver_)->Unlock(pid);
    if (way == Way::kOut && state.ok() && *state == ProcessState::kLocked)
      status = (*driver_)->Checkpoint(pid);
    if (!status.ok()) {
      Log(LogLevel::kError, absl::StrCat("putting back what a dead Rekindle had moved: ", status.message()));
    }
  }

  absl::StatusOr<CheckpointDriver*> Driver() ABSL_LOCKS_EXCLUDED(driver_mutex_) {
    absl::MutexLock lock(&driver_mutex_);
    if (absl::IsUnknown(driver_.status())) driver_ = OpenCheckpointDriver();
    if (!driver_.ok()) return driver_.status();
    return driver_->get();
  }
  absl::StatusOr<DeviceInventory*> Inventory() ABSL_LOCKS_EXCLUDED(driver_mutex_) {
    absl::MutexLock lock(&driver_mutex_);
    if (absl::IsUnknown(inventory_.status())) inventory_ = OpenDeviceInventory();
    if (!inventory_.ok()) return inventory_.status();
    return inventory_->get();
  }

  Ledger ledger_;
  const absl::Duration room_timeout_;
  absl::Mutex driver_mutex_;
  // Unknown: not yet opened.
  absl::StatusOr<std::unique_ptr<CheckpointDriver>> driver_;
  absl::StatusOr<std::unique_ptr<DeviceInventory>> inventory_;
  absl::Mutex mutex_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;  // calls that change something
  int locking_ ABSL_GUARDED_BY(mutex_) = 0;    // of these, calls that wait for the lock
  std::map<pid_t, Moved> moved_ ABSL_GUARDED_BY(mutex_);
  uint64_t moves_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<pid_t, pid_t> threads_ ABSL_GUARDED_BY(mutex_);  // in which the driver works, as it last told
};

}  // namespace
}  // namespace rekindle::gpu

int main(int argc, char** argv) {
  rekindle::LeaveOutDeadlockChecks();
  // We end when our master does, after putting things back, and at nobody else's wish.
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  ::prctl(PR_SET_NAME, rekindle::gpu::kHelperName);
  // The GPUs of all jobs are its business, no profiler's library has any in it, and it is part of no job.
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "CUDA_INJECTION64_PATH", "CUDA_CHECKPOINT_JOB_FILE"})
    ::unsetenv(name);
  // A client of MPS, even one that only initialises the driver, holds the server of its user: the programs of
  // other users would wait for our end.
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", "/dev/null", /*overwrite=*/1);
  int64_t room_ms = 0;
  if (argc > 2 && !absl::SimpleAtoi(argv[2], &room_ms)) return 2;
  auto* helper = new rekindle::gpu::Helper(argc > 1 ? argv[1] : "", absl::Milliseconds(room_ms));
  helper->Serve();
  helper->PutBack();
  ::_exit(0);  // threads may still be in the driver
}
