#include "restore/lazy_clone.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"
#include "base/packet_socket.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "dedup_store/block_io.h"
#include "restore/descriptor_share.h"
#include "restore/sandbox.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

// What a fault brings along of its neighbours: a copy costs far less than another fault.
constexpr uint32_t kPagesAround = 8;
// So many neighbours come before their room is looked at again: less than MemoryRoom::Left leaves free, so
// that those that come late do no harm either.
constexpr int64_t kNeighboursAtOnce = 128;
// Where there is none: looking takes longer than a fault.
constexpr int64_t kLookForRoomEachNs = 100'000'000;
constexpr size_t kMostRecordedPages = size_t{4} << 20;
// How long a task may take to change its memory: forking one with much of it lasts.
constexpr absl::Duration kLongestChange = absl::Minutes(2);
constexpr absl::Duration kLookAtTasks = absl::Milliseconds(100);
// Who may be asked at any time, and is recorded no more, has the machine for so long before the fill begins.
constexpr absl::Duration kQuietStart = absl::Seconds(1);
// For a descriptor, while others have them all: somebody waits for the restore, and may try again; a job that
// runs would be lost.
constexpr absl::Duration kCriuWaits = absl::Seconds(1), kForkWaits = absl::Seconds(10);
// Until the init of a sandbox takes what it is told. Until then the pager's guard alone keeps its processes
// from seeing zeros if the pager dies.
constexpr absl::Duration kInitWaits = absl::Seconds(10);

constexpr absl::Duration kOthersMayPutIn = absl::Seconds(10);

class Listener : public PagerSource {
 public:
  Listener(std::shared_ptr<LazyClone> clone, int fd) : clone_(std::move(clone)), fd_(fd) {}
  int fd() const override { return fd_; }
  Next OnReady() override { return clone_->OnListener(); }

 private:
  const std::shared_ptr<LazyClone> clone_;
  const int fd_;
};

class Connection : public PagerSource {
 public:
  Connection(std::shared_ptr<LazyClone> clone, int fd) : clone_(std::move(clone)), fd_(fd) {}
  int fd() const override { return fd_; }
  Next OnReady() override { return clone_->OnConnection(); }

 private:
  const std::shared_ptr<LazyClone> clone_;
  const int fd_;
};

class Keeper : public PagerSource {
 public:
  Keeper(std::shared_ptr<LazyClone> clone, int fd) : clone_(std::move(clone)), fd_(fd) {}
  int fd() const override { return fd_; }
  Next OnReady() override { return AgainIf(clone_->OnKeeper()); }

 private:
  const std::shared_ptr<LazyClone> clone_;
  const int fd_;
};

class Sockets : public PagerSource {
 public:
  Sockets(std::shared_ptr<LazyClone> clone, std::unique_ptr<FirstAnswer> answer)
      : clone_(std::move(clone)), answer_(std::move(answer)) {}
  int fd() const override { return answer_->fd(); }
  Next OnReady() override { return AgainIf(clone_->OnSockets(*answer_)); }

 private:
  const std::shared_ptr<LazyClone> clone_;
  const std::unique_ptr<FirstAnswer> answer_;
};

class TaskSource : public PagerSource {
 public:
  TaskSource(std::shared_ptr<LazyClone> clone, std::shared_ptr<LazyTask> task)
      : clone_(std::move(clone)), task_(std::move(task)) {}
  int fd() const override { return task_->fd(); }
  Next OnReady() override { return clone_->OnTask(task_); }

 private:
  const std::shared_ptr<LazyClone> clone_;
  const std::shared_ptr<LazyTask> task_;
};

}  // namespace

LazyClone::LazyClone(Pager& pager, LazyCloneOptions options, std::shared_ptr<LazyImage> image,
                     UniqueFd listener, UniqueFd keeper)
    : pager_(pager),
      options_(std::move(options)),
      image_(std::move(image)),
      listener_(std::move(listener)),
      keeper_(std::move(keeper)),
      record_(options_.timeline),
      recording_(!image_->Learned()) {}

void LazyClone::Start() {
  Watch(std::make_shared<Keeper>(shared_from_this(), keeper_.get()));
  Watch(std::make_shared<Listener>(shared_from_this(), listener_.get()));
}

void LazyClone::Watch(std::shared_ptr<PagerSource> source) {
  absl::MutexLock lock(&mutex_);
  if (!ended_) sources_.push_back(pager_.Add(std::move(source)));
}

bool LazyClone::CriuMayWait() {
  if (!criu_waits_.has_value()) criu_waits_.emplace();
  if (criu_waits_->seconds() < absl::ToDoubleSeconds(kCriuWaits)) return true;
  Fail(absl::ResourceExhaustedError(kNoDescriptors));
  return false;
}

PagerSource::Next LazyClone::OnListener() {
  using Next = PagerSource::Next;
  UniqueFd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted.valid()) {
    if (errno == EINTR || errno == EAGAIN) return Next::kAgain;
    if (errno == EMFILE || errno == ENFILE) return CriuMayWait() ? Next::kLater : Next::kDone;
    // CRIU would wait for ever.
    Fail(ErrnoStatus(errno, "taking CRIU's connection"));
    return Next::kDone;
  }
  criu_waits_.reset();
  connection_.emplace(std::move(accepted));
  Watch(std::make_shared<Connection>(shared_from_this(), connection_->fd()));
  return Next::kDone;  // CRIU connects once
}

PagerSource::Next LazyClone::OnConnection() {
  using Next = PagerSource::Next;
  for (;;) {
    auto event = connection_->Next();
    if (absl::IsResourceExhausted(event.status())) return CriuMayWait() ? Next::kLater : Next::kDone;
    if (!event.ok()) {
      Fail(event.status());
      return Next::kDone;
    }
    criu_waits_.reset();
    using What = criu::LazyPagesConnection::Event::What;
    switch (event->what) {
      case What::kNothing:
        return Next::kAgain;
      case What::kZombie:
        continue;
      case What::kTask: {
        std::shared_ptr<const TaskPages> pages = image_->PagesOf(event->pid);
        if (pages == nullptr) {
          Fail(absl::InternalError(absl::StrCat("CRIU wants memory served for process ", event->pid,
                                                ", which image ", image_->reader().info().reference,
                                                " does not have")));
          return Next::kDone;
        }
        AddTask(std::make_shared<LazyTask>(event->pid, std::move(event->userfaultfd), std::move(pages)),
                Made::kByCriu);
        continue;
      }
      case What::kFinished: {
        record_.JobRuns();
        std::unique_ptr<FirstAnswer> answer;
        {
          absl::MutexLock lock(&mutex_);
          running_ = true;
          const absl::Time now = SteadyNow();
          record_until_ = now + options_.record;
          fill_from_ =
              now + (options_.until_answer ? std::min(options_.record, kQuietStart) : options_.record);
          answer = std::move(answer_);
        }
        if (answer != nullptr) Watch(std::make_shared<Sockets>(shared_from_this(), std::move(answer)));
        break;
      }
      case What::kClosed:
        // Before the end of the restore: its sandbox goes too, and with it all this.
        return Next::kDone;
    }
    pager_.WakeFiller();
  }
}

bool LazyClone::Tell(absl::string_view what, absl::Span<const int> descriptors) {
  const absl::Status sent = SendPacket(keeper_.get(), what, descriptors, MSG_DONTWAIT);
  // One that has gone takes all with it.
  return sent.ok() || absl::IsUnavailable(sent);
}

void LazyClone::TellAgain() {
  {
    absl::MutexLock lock(&mutex_);
    if (!untold_end_.empty() && Tell(untold_end_)) untold_end_.clear();
    if (untold_since_ == absl::InfiniteFuture()) return;
    for (Served& served : tasks_) {
      if (served.told) continue;
      const int fd = served.task->fd();
      served.told = Tell(absl::StrCat("k", served.number), {&fd, 1});
      if (!served.told) break;
    }
    const bool all = std::all_of(tasks_.begin(), tasks_.end(), [](const Served& s) { return s.told; });
    if (all) untold_since_ = absl::InfiniteFuture();
    if (all || SteadyNow() - untold_since_ < kInitWaits) return;
  }
  Fail(
      absl::DeadlineExceededError("the init of its sandbox takes nothing (is it stopped?), and must be told "
                                  "of each process whose memory is "
                                  "missing"));
}

void LazyClone::AddTask(std::shared_ptr<LazyTask> task, Made made) {
  const int fd = task->fd();
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  const uint64_t share = pager_.ShareOfAClone();
  uint64_t number;
  bool told;
  {
    // Before all else: if this process died now, the task would see zeros.
    absl::MutexLock lock(&mutex_);
    if (complete_ || ended_) return;  // it has all
    number = next_number_++;
    told = Tell(absl::StrCat("k", number), {&fd, 1});
  }
  if (made == Made::kByFork) task->DropUnforked();
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    tasks_.push_back(
        {task, number, pager_.Add(std::make_shared<TaskSource>(shared_from_this(), task)), told});
    if (!told) untold_since_ = std::min(untold_since_, SteadyNow());
  }
  KeepToShare(made, share);
}

void LazyClone::KeepToShare(Made made, uint64_t share) {
  bool look;
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t processes = tasks_.size();
    // Those that have ended do not count. To look for them at each fork would take longer than the fork.
    look = running_ && (processes > share || (IsCrowded(processes, share) && processes >= count_tasks_at_));
  }
  if (look) LetGoOfTasks();
  uint64_t processes;
  {
    absl::MutexLock lock(&mutex_);
    processes = tasks_.size();
    if (look) count_tasks_at_ = processes + processes / 4;
    if (look && made == Made::kByFork && IsCrowded(processes, share) && !crowded_.exchange(true)) {
      record_until_ = fill_from_ = SteadyNow();
    }
  }
  if (processes <= share) return;
  Fail(absl::ResourceExhaustedError(absl::StrCat(
      "it has ", processes,
      " processes whose memory is missing, more than its share of the descriptors that the pager has for "
      "all clones: let its memory come in before it forks so often (--fill idle, --fill eager), or raise "
      "the limit (LimitNOFILE=, ulimit -n)")));
}

void LazyClone::LetGoOfTasks() {
  std::vector<Served> gone;
  {
    bool takes = true;  // the init; else it is told later
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < tasks_.size();) {
      bool is_let_go = tasks_[i].task->Gone() || (crowded_ && tasks_[i].task->missing() == 0);
      if (is_let_go && tasks_[i].told) {
        takes = takes && Tell(absl::StrCat("g", tasks_[i].number));
        is_let_go = takes;
      }
      if (!is_let_go) {
        ++i;
        continue;
      }
      gone.push_back(std::move(tasks_[i]));
      tasks_.erase(tasks_.begin() + static_cast<ptrdiff_t>(i));
      if (i == fill_task_) fill_next_ = 0;
      if (i < fill_task_) --fill_task_;
    }
  }
  for (const Served& served : gone) pager_.Remove(served.source);
}

bool LazyClone::OnKeeper() {
  char byte;
  const ssize_t n = ::recv(keeper_.get(), &byte, sizeof byte, MSG_DONTWAIT);
  if (n > 0 && byte == kJobExited) exited_ = true;
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return true;
  // The sandbox's init has gone, or is about to: its descriptors close before the kernel kills the others.
  // While one of them has its memory it is served, or it would see zeros.
  sandbox_ended_ = true;
  EndIfAllGone();
  return false;
}

void LazyClone::EndIfAllGone() {
  for (const std::shared_ptr<LazyTask>& task : Tasks()) {
    if (!task->Gone()) return;
  }
  End();
}

bool LazyClone::TakeEvents(LazyTask& task, std::vector<uint64_t>* faults, bool* forked) {
  if (failed_) return false;
  ++events_in_work_;
  auto events = task.ReadEvents();
  if (!events.ok()) {
    --events_in_work_;
    Fail(events.status());
    return false;
  }
  for (std::unique_ptr<LazyTask>& child : events->children) AddTask(std::move(child), Made::kByFork);
  if (!events->lost_children.empty()) {
    {
      absl::MutexLock lock(&mutex_);
      for (UniqueFd& child : events->lost_children) lost_children_.push_back(std::move(child));
    }
    Fail(absl::ResourceExhaustedError(
        absl::StrCat("it forked and discarded memory at once while there was no descriptor for the child: ",
                     kNoDescriptors)));
    --events_in_work_;
    return false;
  }
  --events_in_work_;
  faults->insert(faults->end(), events->faults.begin(), events->faults.end());
  if (forked != nullptr) *forked = !events->children.empty();
  if (task.starved() < kForkWaits) return true;
  Fail(absl::ResourceExhaustedError(kNoDescriptors));
  return false;
}

bool LazyClone::MayForkAtOnce() {
  const bool waits_for_fill = crowded_ && options_.fill != Fill::kNever;
  const uint64_t share = waits_for_fill ? pager_.ShareOfAClone() : 0;
  absl::MutexLock lock(&mutex_);
  if (untold_since_ != absl::InfiniteFuture()) return false;
  return !waits_for_fill || tasks_.size() <= share / 2;
}

PagerSource::Next LazyClone::OnTask(const std::shared_ptr<LazyTask>& task) {
  using Next = PagerSource::Next;
  if (ended_) return Next::kDone;
  std::vector<uint64_t> faults;
  bool forked = false;
  if (!TakeEvents(*task, &faults, &forked)) return Next::kDone;
  for (size_t i = 0; i < faults.size(); ++i) {
    if (!Answer(*task, faults[i], &faults)) return Next::kDone;
  }
  if (ended_) return Next::kDone;
  return task->starved() > absl::ZeroDuration() || (forked && !MayForkAtOnce()) ? Next::kLater : Next::kAgain;
}

void LazyClone::AnswerLater(LazyTask& task, std::vector<uint64_t> faults) {
  auto answer = [clone = shared_from_this(), task = task.shared_from_this(),
                 faults = std::move(faults)]() mutable {
    if (clone->ended_) return;
    for (size_t i = 0; i < faults.size(); ++i) {
      if (!clone->Answer(*task, faults[i], &faults)) return;
    }
  };
  if (task.starved() > absl::ZeroDuration()) {
    pager_.DeferToTick(std::move(answer));
  } else {
    pager_.Defer(std::move(answer));
  }
}

bool LazyClone::MayBringNeighbours(uint32_t pages) {
  if (neighbours_.fetch_sub(pages) >= pages) return true;
  const int64_t now = MonotonicNanos();
  if (now < look_for_room_ns_) return false;
  if (!LookForRoom().for_all()) {
    look_for_room_ns_ = now + kLookForRoomEachNs;
    return false;
  }
  neighbours_ = kNeighboursAtOnce - pages;
  return true;
}

bool LazyClone::PutKept(LazyTask& task, const LazyTask::Wanted& wanted, bool alone, uint32_t* pages,
                        absl::StatusOr<LazyTask::Outcome>* outcome) {
  const std::shared_ptr<const PrefillSet> set = image_->prefill();
  if (set == nullptr) return false;
  const uint64_t number = task.pages().FirstNumberOf(wanted.run) + wanted.page;
  const PrefillSet::Found found = set->Find(task.pid(), number);
  if (found.pages == 0) return false;
  *pages = static_cast<uint32_t>(std::min<uint64_t>(found.pages, kPagesAround));
  if (*pages > 1 && (alone || !MayBringNeighbours(*pages - 1))) *pages = 1;
  *outcome = task.Put(number, *pages, found.bytes);
  return true;
}

std::optional<absl::StatusOr<FrameCache::Pin>> LazyClone::GetOrLoad(LazyTask& task, uint64_t address,
                                                                    store::FrameId frame, On thread,
                                                                    PagerRecord::Fault* fault) {
  if (FrameCache::Pin there = pager_.cache().Get(frame))
    return absl::StatusOr<FrameCache::Pin>(std::move(there));
  if (thread == On::kFaultThread && !pager_.MayWaitForDisk()) {
    pager_.LeaveToDisk(image_->reader().info().owner,
                       [clone = shared_from_this(), whose = task.shared_from_this(), address] {
                         if (clone->ended_) return;
                         std::vector<uint64_t> faults = {address};
                         for (size_t i = 0; i < faults.size(); ++i) {
                           if (!clone->Answer(*whose, faults[i], &faults, On::kDiskThread)) return;
                         }
                       });
    return std::nullopt;
  }
  PagerRecord::Loaded loaded;
  auto got = PagerRecord::GetOrLoad(pager_.cache(), image_->reader(), frame, &loaded);
  if (thread == On::kFaultThread) pager_.HasWaitedForDisk();
  fault->loaded |= loaded.frames > 0;
  loaded_by_faults_.fetch_add(loaded.bytes, std::memory_order_relaxed);
  return got;
}

bool LazyClone::Answer(LazyTask& task, uint64_t address, std::vector<uint64_t>* more, On thread) {
  Stopwatch watch;
  PagerRecord::Fault fault;
  fault.address = address;
  fault.begin_ns = MonotonicNanos();
  bool alone = false;  // without its neighbours
  for (int attempt = 0; watch.seconds() < absl::ToDoubleSeconds(kLongestChange); ++attempt) {
    const LazyTask::Wanted wanted = task.WhatBelongsAt(address);
    absl::StatusOr<LazyTask::Outcome> outcome;
    const bool kept = wanted.missing && !recording_ && PutKept(task, wanted, alone, &fault.pages, &outcome);
    if (wanted.missing && !kept) {
      const store::StoredRun& run = task.pages().runs()[wanted.run];
      auto had = GetOrLoad(task, address, run.frame, thread, &fault);
      if (!had) return true;
      absl::StatusOr<FrameCache::Pin>& frame = *had;
      if (!frame.ok()) {
        Fail(frame.status());
        return false;
      }
      uint32_t first = wanted.page, pages = 1;
      if (!recording_) {
        const uint32_t first_around = wanted.page / kPagesAround * kPagesAround;
        const uint32_t around = std::min(kPagesAround, run.pages - first_around);
        if (around > 1 && !alone && MayBringNeighbours(around - 1)) {
          first = first_around;
          pages = around;
        }
      } else {
        absl::MutexLock lock(&mutex_);
        if (touched_.size() < kMostRecordedPages) {
          touched_.push_back({task.pid(), task.pages().FirstNumberOf(wanted.run) + wanted.page});
        }
      }
      outcome = task.Put(task.pages().FirstNumberOf(wanted.run) + first, pages,
                         frame->bytes().data() + (size_t{run.page_in_frame} + first) * kPageSize);
      fault.pages = pages;
    } else if (!wanted.missing) {
      outcome = task.PutZero(address);
    }
    if (!outcome.ok()) {
      Fail(outcome.status());
      return false;
    }
    switch (*outcome) {
      case LazyTask::Outcome::kDone:
        (wanted.missing ? faults_ : zero_faults_).fetch_add(1, std::memory_order_relaxed);
        record_.AddFault(fault);
        return true;
      case LazyTask::Outcome::kGone:
        return true;  // events may still come: the process may have forked before
      case LazyTask::Outcome::kNoMemory:
        // Maybe for a neighbour alone.
        if (wanted.missing && fault.pages > 1 && !std::exchange(alone, true)) break;
        Fail(absl::ResourceExhaustedError(
            "there is no memory for a page that it touched: its limit, or the machine's memory, is used up"));
        return false;
      case LazyTask::Outcome::kChanging:
        if (!TakeEvents(task, more)) return false;
        if (task.starved() > absl::ZeroDuration()) {
          AnswerLater(task, {address});
          return true;
        }
        task.WaitForChange(attempt);
        break;
    }
  }
  Fail(absl::InternalError(absl::StrCat("a page of process ", task.pid(), " could not be put in")));
  return false;
}

void LazyClone::CompleteIfDone() {
  {
    absl::MutexLock lock(&mutex_);
    if (complete_ || !running_) return;
    bool lives = next_number_ == 1;
    for (const Served& served : tasks_) {
      const bool gone = served.task->Gone();
      if (served.task->missing() > 0 && !gone) return;
      lives |= !gone;
    }
    // In this order: a child of one that lacks nothing lacks nothing.
    if (events_in_work_ > 0) return;
    // Its init will tell how it has ended, if it has.
    if (recording_ && !lives) return;
    // From here on the job is like any other. Whoever waits for an event of ours is let go by the last close.
    if (!Tell("d")) return;
    complete_ = true;
  }
  EndRecording(RecordingEnd::kEnded);
  End();
}

void LazyClone::WatchSockets(const std::map<pid_t, UniqueFd>& processes) {
  if (!options_.until_answer || !recording_) return;
  const int64_t begin = MonotonicNanos();
  std::vector<UniqueFd> own;
  for (const auto& [pid, pidfd] : processes) own.emplace_back(::fcntl(pidfd.get(), F_DUPFD_CLOEXEC, 0));
  auto answer = FirstAnswer::Watch(std::move(own));
  if (!answer.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("when the job of sandbox ", options_.id,
                     " answers for the first time can't be seen: ", answer.status().message()));
    return;
  }
  record_.Add("restore", "finding its listening sockets", begin, {{"found", *answer != nullptr ? 1 : 0}});
  absl::MutexLock lock(&mutex_);
  answer_ = *std::move(answer);
}

bool LazyClone::OnSockets(FirstAnswer& answer) {
  if (!recording_ || ended_) return false;
  const absl::StatusOr<bool> answered = answer.Look();
  if (!answered.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("whether the job of sandbox ", options_.id,
                                         " has answered can't be seen: ", answered.status().message()));
    return false;
  }
  if (*answered) Ready(RecordingEnd::kAnswered);
  return !*answered;
}

void LazyClone::Ready(RecordingEnd how) {
  EndRecording(how);
  {
    absl::MutexLock lock(&mutex_);
    fill_from_ = absl::InfinitePast();
  }
  pager_.WakeFiller();
}

void LazyClone::EndRecording(RecordingEnd how) {
  if (!recording_.exchange(false)) return;
  std::vector<LazyImage::Touched> touched;
  {
    absl::MutexLock lock(&mutex_);
    touched.swap(touched_);
  }
  if (running() && !failed_ && !image_->Learned()) {
    absl::Status learned = image_->Learn(pager_.store(), touched, how);
    if (!learned.ok()) {
      Log(LogLevel::kWarning, absl::StrCat("keeping the working set of ", image_->reader().info().reference,
                                           ": ", learned.message()));
    }
  }
  pager_.WakeFiller();
}

void LazyClone::Tick() {
  bool due, look;
  {
    const absl::Time now = SteadyNow();
    absl::MutexLock lock(&mutex_);
    due = now >= record_until_;
    look = running_ && now >= look_at_tasks_;
    if (look) look_at_tasks_ = now + kLookAtTasks;
  }
  if (due) EndRecording(RecordingEnd::kTime);
  if (sandbox_ended_) EndIfAllGone();
  TellAgain();
  if (!look) return;
  LetGoOfTasks();
  CompleteIfDone();
}

void LazyClone::Fail(const absl::Status& why) {
  if (ended_ || failed_.exchange(true)) return;
  Log(LogLevel::kError, absl::StrCat("the job of sandbox ", options_.id, " is ended: ", why.message()));
  const std::string end = absl::StrCat(!absl::IsDataLoss(why)        ? "x"
                                       : store::IsRefusedByDisk(why) ? "R"
                                                                     : "X",
                                       std::string(why.message()));
  if (!Tell(end)) {
    absl::MutexLock lock(&mutex_);
    untold_end_ = end;
  }
  // The sandbox still holds its descriptors until all its processes have gone; then the keeper's end tells
  // us.
}

void LazyClone::End() {
  if (ended_.exchange(true)) return;
  // A copy that was killed, or ended before it was ready, tells less than nothing.
  if (!exited_ || options_.until_answer || options_.until_ready) recording_ = false;
  EndRecording(RecordingEnd::kEnded);
  std::vector<uint64_t> sources;
  {
    // Closed when the last thread that works on them lets go of them.
    absl::MutexLock lock(&mutex_);
    sources.swap(sources_);
    for (const Served& served : tasks_) sources.push_back(served.source);
    tasks_.clear();
  }
  for (uint64_t source : sources) pager_.Remove(source);
  pager_.RemoveClone(options_.id);
}

bool LazyClone::complete() const {
  absl::MutexLock lock(&mutex_);
  return complete_;
}

bool LazyClone::AwaitComplete() const {
  absl::MutexLock lock(&mutex_);
  const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return complete_ || ended_; };
  AwaitUntil(mutex_, absl::Condition(&over), Deadline(kOthersMayPutIn));
  return complete_;
}

bool LazyClone::running() const {
  absl::MutexLock lock(&mutex_);
  return running_;
}

std::vector<std::shared_ptr<LazyTask>> LazyClone::Tasks() const {
  std::vector<std::shared_ptr<LazyTask>> tasks;
  absl::MutexLock lock(&mutex_);
  for (const Served& served : tasks_) tasks.push_back(served.task);
  return tasks;
}

bool LazyClone::HasRun() const { return running() || ended_; }

std::string LazyClone::EncodeTimeline() const {
  const Numbers n = numbers();
  return record_.Encode({{"faults", static_cast<int64_t>(n.faults)},
                         {"zero_faults", static_cast<int64_t>(n.zero_faults)},
                         {"faults_loaded_bytes", static_cast<int64_t>(loaded_by_faults_)},
                         {"prefilled_pages", static_cast<int64_t>(n.prefilled)},
                         {"filled_pages", static_cast<int64_t>(n.filled)},
                         {"missing_pages", static_cast<int64_t>(n.missing)}});
}

LazyClone::Numbers LazyClone::numbers() const {
  Numbers numbers;
  numbers.faults = faults_;
  numbers.zero_faults = zero_faults_;
  numbers.prefilled = prefilled_;
  numbers.filled = filled_;
  absl::MutexLock lock(&mutex_);
  numbers.running = running_;
  for (const Served& served : tasks_) {
    numbers.pages += served.task->pages().pages();
    numbers.missing += served.task->missing();
    ++numbers.processes;
  }
  return numbers;
}

}  // namespace rekindle::restore
