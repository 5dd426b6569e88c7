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
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/deadlock_checks.h"
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

// After our master's death, of each job: how long calls under way may still take, which wait for work on the
// GPU, or move memory. How long putting it back takes goes by its size.
constexpr absl::Duration kUnderWayMayTake = absl::Minutes(5);
// For the driver to tell something of a process: a helper before us may have begun a move of it.
constexpr absl::Duration kDriverAnswersWithin = absl::Minutes(5);
constexpr absl::Duration kLettingGoMayTake = absl::Seconds(40);
constexpr absl::Duration kTryAgainEvery = absl::Milliseconds(20);
// To bring back all of a job: as often as who moves it well tries it.
constexpr int kAttemptsToPutBack = 2;
// Whatever of Rekindle runs next waits no longer for us.
constexpr absl::Duration kMostWaitForRoom = absl::Seconds(30);

// The driver may name a thread as its own process sees it, which can be in another PID namespace.
absl::StatusOr<pid_t> ThreadNamed(pid_t pid, pid_t theirs) {
  RK_ASSIGN_OR_RETURN(const std::vector<pid_t> threads, ThreadsOf(pid));
  pid_t inside = 0;
  for (const pid_t thread : threads) {
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
        if (request->what == HelperRequest::What::kAct) under_way_.insert(request->pid);
        if (IsLock(*request)) locking_.insert(request->pid);
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

  // Every process that was moved and not settled runs again: each job by itself, for a process of which the
  // driver answers nothing keeps no other job.
  void PutBack() {
    const absl::StatusOr<std::string> mover = ledger_.directory().empty() ? "" : ledger_.Inherit(kHelperLock);
    std::map<pid_t, Moved> moved;
    if (mover.ok() && !mover->empty()) AddThoseNoted(*mover);
    {
      absl::MutexLock lock(&mutex_);
      // A call that is about to begin is not among them yet.
      for (pid_t pid : under_way_) {
        const auto stat = ReadProcessStat(pid);
        if (stat.ok() && moved_.count(pid) == 0) moved_[pid] = {stat->start_ticks, ++moves_, {}};
      }
      moved = moved_;
    }
    if (moved.empty()) return;
    if (!mover.ok()) Log(LogLevel::kWarning, mover.status().message());
    const std::vector<Job> jobs = JobsOf(moved);
    absl::Duration may_take;
    for (const Job& job : jobs) may_take = std::max(may_take, MayTake(job));
    {
      absl::MutexLock lock(&mutex_);
      jobs_left_ = jobs.size();
    }
    // Should one hang.
    ::alarm(static_cast<unsigned>(absl::ToInt64Seconds(may_take)));
    for (const Job& job : jobs) {
      const auto put_back = [this, job] {
        PutBackJob(job);
        absl::MutexLock lock(&mutex_);
        --jobs_left_;
      };
      const absl::Status begun = CatchNoMoreThreads([&] {
        std::thread(put_back).detach();
        return absl::OkStatus();
      });
      if (!begun.ok()) put_back();
    }
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](size_t* left) { return *left == 0; }, &jobs_left_));
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
    bool keeps_room = false;

    std::string Names() const {
      std::vector<pid_t> pids;
      for (const auto& [pid, how] : moved) pids.push_back(pid);
      return absl::StrCat("process ", absl::StrJoin(pids, ", "));
    }
  };

  // All that is done for one job; a call of the driver that hangs comes on top.
  absl::Duration MayTake(const Job& job) const {
    return 2 * kUnderWayMayTake + kMostWaitForRoom + kLettingGoMayTake + 2 * kDriverAnswersWithin +
           room_timeout_ + kAttemptsToPutBack * MoveMayTake(job.uses, 0);
  }

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
        Job& job = jobs[entries->front().job];
        Add(pid, how, entries->front().uses, &job);
        job.keeps_room |= entries->front().keeps_room;
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

  void PutBackJob(const Job& job) {
    // First: whose master lives, and moves it, is nobody's to hold.
    const absl::StatusOr<std::vector<Ledger::Turn>> turns = TakeTurns(job);
    if (!turns.ok()) {
      return Log(LogLevel::kError, absl::StrCat("what a dead Rekindle had moved of ", job.Names(),
                                                " is left as it is: ", turns.status().message()));
    }
    if (IsParked(job)) return;  // by whoever had the turns before
    // A thread that stands within a call of CUDA's keeps the driver from locking, which takes nothing away
    // and has a limit of its own.
    AwaitCalls(job, &locking_);
    std::unique_ptr<ThreadKeeper> keeper;
    // Before the others end: a call under way waits for the driver's thread, which CRIU or a keeper has left
    // standing.
    absl::Status held = HoldThreadsOf(job, &keeper);
    AwaitCalls(job, &under_way_);
    if (absl::IsUnavailable(held)) held = HoldThreadsOf(job, &keeper);
    if (absl::IsUnavailable(held)) return LeaveOut(job, held);
    Job left = job;
    {
      absl::MutexLock lock(&mutex_);
      std::erase_if(left.moved, [this](const auto& process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return moved_.count(process.first) == 0;
      });
    }
    const absl::StatusOr<std::vector<pid_t>> out = Out(left);
    if (!out.ok()) return LeaveOut(job, out.status());
    PutBack(left, *out);
    bool all_back = true;
    for (const auto& [pid, how] : job.moved) all_back = all_back && (!Lives(pid, how) || IsBack(pid));
    if (all_back) {
      // CRIU's plugin has stopped them, or the capture that is no more.
      for (const auto& [pid, how] : job.moved) {
        if (Lives(pid, how)) ::kill(pid, SIGCONT);
      }
    }
    if (keeper != nullptr) keeper->End(all_back);
  }

  bool IsParked(const Job& job) {
    std::vector<pid_t> pids;
    for (const auto& [pid, how] : job.moved) pids.push_back(pid);
    const auto entries = ledger_.Of(pids).value_or(std::vector<LedgerEntry>());
    return std::any_of(entries.begin(), entries.end(),
                       [](const LedgerEntry& entry) { return entry.goal == LedgerEntry::Goal::kParked; });
  }

  static void LeaveOut(const Job& job, const absl::Status& why) {
    Log(LogLevel::kError, absl::StrCat("what a dead Rekindle had moved of ", job.Names(),
                                       " is left as it is, until the driver answers and `rekindle gpu ps` ",
                                       "or another command of Rekindle's is called: ", why.message()));
  }

  static bool Lives(pid_t pid, const Moved& how) {
    const auto stat = ReadProcessStat(pid);
    return stat.ok() && stat->start_ticks == how.start;
  }

  // Until none is under way of the job's, or one hangs.
  void AwaitCalls(const Job& job, const std::multiset<pid_t>* calls) {
    absl::MutexLock lock(&mutex_);
    auto none = [&job, calls] {
      return std::none_of(job.moved.begin(), job.moved.end(),
                          [calls](const auto& process) { return calls->count(process.first) > 0; });
    };
    AwaitUntil(mutex_, absl::Condition(&none), Deadline(kUnderWayMayTake));
  }

  // What the driver answers. Unavailable: nothing, for as long as that may take; it may hang in it.
  template <typename T>
  static absl::StatusOr<T> InTime(const std::function<absl::StatusOr<T>()>& ask) {
    struct Answer {
      absl::Mutex mutex;
      bool is_there ABSL_GUARDED_BY(mutex) = false;
      absl::StatusOr<T> value ABSL_GUARDED_BY(mutex);
    };
    const auto answer = std::make_shared<Answer>();
    RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] {
      std::thread([ask, answer] {
        absl::StatusOr<T> value = ask();
        absl::MutexLock lock(&answer->mutex);
        answer->value = std::move(value);
        answer->is_there = true;
      }).detach();
      return absl::OkStatus();
    }));
    absl::MutexLock lock(&answer->mutex);
    if (AwaitUntil(answer->mutex, absl::Condition(&answer->is_there), Deadline(kDriverAnswersWithin)))
      return answer->value;
    return absl::UnavailableError("the NVIDIA driver did not answer in time");
  }

  absl::StatusOr<ProcessState> StateOf(pid_t pid) {
    RK_ASSIGN_OR_RETURN(CheckpointDriver * driver, Driver());
    return InTime<ProcessState>([driver, pid] { return driver->State(pid); });
  }

  // It runs, or has ended.
  bool IsBack(pid_t pid) {
    const auto state = StateOf(pid);
    return state.ok() ? *state == ProcessState::kRunning : !absl::IsUnavailable(state.status());
  }

  // Those whose memory is out. Unavailable: of one that lives nobody knows.
  absl::StatusOr<std::vector<pid_t>> Out(const Job& job) {
    std::vector<pid_t> out;
    for (const auto& [pid, how] : job.moved) {
      if (!Lives(pid, how)) continue;
      const auto state = StateOf(pid);
      if (absl::IsUnavailable(state.status())) return state.status();
      if (state.ok() && *state == ProcessState::kCheckpointed) out.push_back(pid);
    }
    return out;
  }

  void PutBack(const Job& job, absl::Span<const pid_t> out) {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const auto& [pid, how] : job.moved) {
      for (const cuda::GpuPair& pair : how.pairs)
        pairs.emplace_back(FormatUuid(pair.from), FormatUuid(pair.to));
    }
    absl::StatusOr<RoomTurns> room = RoomTurns();
    if (!out.empty()) {
      RoomWait wait;
      wait.for_room = room_timeout_;
      wait.for_turns = kMostWaitForRoom;
      wait.is_kept = job.keeps_room;
      wait.look = [this]() -> absl::StatusOr<DeviceView> {
        RK_ASSIGN_OR_RETURN(DeviceInventory * inventory, Inventory());
        return inventory->Look();
      };
      room = AwaitRoom(ledger_, RoomFor(UsesOf(job.uses, out), pairs, 0), out, wait);
    }
    if (!room.ok()) {
      // The driver would lose what does not fit. Out it is safe, and whatever comes next tries again.
      Log(LogLevel::kError, absl::StrCat("what a dead Rekindle had moved of ", job.Names(),
                                         " stays in host memory: ", room.status().message()));
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
    absl::StatusOr<std::vector<pid_t>> left = Out(job);
    for (int attempt = 0; attempt < kAttemptsToPutBack && left.ok() && !left->empty(); ++attempt) {
      bring(Way::kOntoDevice);
      left = Out(job);
    }
    if (!left.ok()) return LeaveOut(job, left.status());
    // Not some without the others: they may wait for each other.
    if (left->empty()) return bring(Way::kRunning);
    Log(LogLevel::kError,
        absl::StrCat("a job that a dead Rekindle had moved can't go back as a whole: all of ", job.Names(),
                     " stays in host memory"));
    bring(Way::kOut);
  }

  enum class Way { kOntoDevice, kRunning, kOut };

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
    if (request.what == HelperRequest::What::kAct) under_way_.erase(under_way_.find(request.pid));
    if (IsLock(request)) locking_.erase(locking_.find(request.pid));
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
    RK_ASSIGN_OR_RETURN(const pid_t theirs,
                        InTime<pid_t>([driver, pid] { return driver->RestoreThread(pid); }));
    return ThreadNamed(pid, theirs);
  }

  // A thread that needs its device memory before that is back can die of it. Those that have ended, and those
  // of which the driver does not tell its thread, are left out. Unavailable: of one it answers nothing.
  absl::Status HoldThreadsOf(const Job& job, std::unique_ptr<ThreadKeeper>* held) {
    if (!ThreadsAreHeld()) return absl::OkStatus();
    std::vector<pid_t> pids;
    std::vector<RestoreThread> threads;
    for (const auto& [pid, how] : job.moved) {
      if (!Lives(pid, how)) continue;
      const absl::StatusOr<pid_t> thread = ThreadOf(pid);
      if (absl::IsUnavailable(thread.status())) return thread.status();
      if (!thread.ok()) continue;
      pids.push_back(pid);
      threads.push_back({pid, *thread});
    }
    if (pids.empty()) return absl::OkStatus();
    // CRIU, which our master's end stops, lets go of them first.
    const Deadline deadline(kLettingGoMayTake);
    for (;;) {
      auto keeper = ThreadKeeper::Hold(pids);
      absl::Status status = keeper.status();
      if (status.ok()) status = (*keeper)->Run(threads, /*for_device_memory=*/false);
      if (status.ok()) {
        *held = *std::move(keeper);
        return status;
      }
      if (deadline.passed()) {
        Log(LogLevel::kWarning,
            absl::StrCat("the threads of a job run while its device memory is out: ", status.message()));
        return absl::OkStatus();
      }
      absl::SleepFor(kTryAgainEvery);
    }
  }

  void Bring(pid_t pid, const Moved& moved, Way way) {
    if (!Lives(pid, moved) || !driver_.ok()) return;
    const auto state = StateOf(pid);
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
  std::multiset<pid_t> under_way_ ABSL_GUARDED_BY(mutex_);  // of calls that change something
  std::multiset<pid_t> locking_ ABSL_GUARDED_BY(mutex_);    // of these, of calls that wait for the lock
  size_t jobs_left_ ABSL_GUARDED_BY(mutex_) = 0;            // to put back
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
