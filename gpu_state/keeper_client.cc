#include "gpu_state/keeper_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/companion_program.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/huge_pages.h"
#include "base/log.h"
#include "base/packet_socket.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "base/timed_await.h"
#include "base/unix_socket.h"
#include "gpu_state/populate.h"
#include "gpu_state/thread_watch.h"

namespace rekindle::gpu {
namespace {

constexpr char kPluginFolder[] = "criu-plugins";
constexpr char kPlugin[] = "rekindle-gpu.so";
constexpr char kSocket[] = "gpu-keeper.sock";
// Smaller ones are hardly device memory.
constexpr uint64_t kLeastDeviceMapping = 2 << 20;
constexpr char kHugePagesVariable[] = "REKINDLE_GPU_HUGE_PAGES";
constexpr size_t kLongestNote = 1 << 20;
// For threads to stop, beyond the keeper's own time-out.
constexpr absl::Duration kMayTake = absl::Seconds(60);
// While we have no descriptor left for CRIU's connection.
constexpr absl::Duration kPauseWhenFull = absl::Milliseconds(50), kFullMayTake = absl::Seconds(5);

// Where the process can have none the driver's own request, which makes all of its pages at once, is better.
bool HugePagesWanted(pid_t pid) {
  const char* value = std::getenv(kHugePagesVariable);
  return (value == nullptr || absl::string_view(value) != "0") && HugePagesAllowedFor(pid);
}

constexpr char kHoldVariable[] = "REKINDLE_GPU_HOLD_THREADS";

// How much of what a process has on GPUs it maps before nothing else is looked for. What the driver keeps
// there for itself need not be saved; less than half of it may be in the first of several mappings.
uint64_t MostOf(uint64_t device_bytes) { return device_bytes / 4 * 3; }

struct Watcher {
  pid_t pid = 0;  // 0: none
  bool has_fault = false;
};

// The process that traces the thread, if that is a watch.
Watcher WatcherOf(pid_t pid, pid_t thread) {
  const pid_t tracer = TracerOf(absl::StrCat(pid, "/task/", thread));
  if (tracer == 0) return {};
  const auto stat = ReadProcessStat(tracer);
  if (!stat.ok() || (stat->name != WATCH_NAME && stat->name != FAULT_WATCH_NAME)) return {};
  return {tracer, stat->name == FAULT_WATCH_NAME};
}

// The watches over threads of a process.
std::vector<Watcher> WatchersOf(pid_t pid) {
  std::vector<Watcher> watchers;
  for (const pid_t thread : ThreadsOf(pid).value_or(std::vector<pid_t>())) {
    if (const Watcher watcher = WatcherOf(pid, thread); watcher.pid != 0) watchers.push_back(watcher);
  }
  return watchers;
}

bool SendTo(const UniqueFd& socket, const KeeperMessage& message) {
  ssize_t n;
  while ((n = ::send(socket.get(), &message, sizeof message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
  }
  return n >= 0;
}

// The next message; nothing: none comes in time, or nobody is there.
std::optional<KeeperMessage> ReceiveFrom(const UniqueFd& socket, absl::Time deadline) {
  for (;;) {
    pollfd entry = {socket.get(), POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    KeeperMessage message = {};
    const ssize_t n = ::recv(socket.get(), &message, sizeof message, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n != sizeof message) return std::nullopt;
    return message;
  }
}

// Whom we speak to.
struct Speaker {
  UniqueFd socket;  // not valid: nobody
  bool takes_areas = true;
  UniqueFd note = {};  // not valid: it is of an older Rekindle
};

// Has the watch at the other end hold a process that it watches, to hear which words it knows. Where ours are
// not among them it watches on.
Speaker Meet(UniqueFd socket, pid_t watched) {
  const absl::Time deadline = absl::Now() + kMayTake;
  KeeperMessage hold = {};
  hold.what = kKeeperHold;
  hold.id = watched;
  if (!SendTo(socket, hold)) return {};
  const std::optional<KeeperMessage> answer = ReceiveFrom(socket, deadline);
  if (answer.has_value() && answer->what == kKeeperStands) {
    if (answer->bytes == KEEPER_VERSION) return {std::move(socket), true};
    if (answer->bytes == KEEPER_WITHOUT_AREAS) return {std::move(socket), false};
  }
  ::shutdown(socket.get(), SHUT_WR);
  // It has hung up once it can be told to let go.
  while (ReceiveFrom(socket, deadline).has_value()) {
  }
  Log(LogLevel::kInfo, absl::StrCat("the watch over process ", watched, " is of another Rekindle: a new one ",
                                    "takes its place"));
  return {};
}

// A descriptor of a watch of ours. Not valid: it has no such, or is somebody else's, who may have put there
// whatever he likes.
UniqueFd DescriptorOf(pid_t watcher, int number) {
  struct stat owner;
  if (::stat(absl::StrCat("/proc/", watcher).c_str(), &owner) != 0 || owner.st_uid != ::geteuid()) return {};
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, watcher, 0)));
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), number, 0)));
}

UniqueFd NoteDescriptorOf(pid_t watcher) {
  UniqueFd note = DescriptorOf(watcher, WATCH_NOTE);
  // Only memory has seals, and reading that never waits.
  if (note.valid() && ::fcntl(note.get(), F_GET_SEALS) < 0) note.Reset();
  return note;
}

// The watch over one of these processes, which is to be their keeper. Nobody: there is none that knows our
// words, or we may not.
Speaker SpeakToWatch(absl::Span<const pid_t> pids) {
  std::set<pid_t> met;
  for (pid_t pid : pids) {
    for (const Watcher& watcher : WatchersOf(pid)) {
      if (!met.insert(watcher.pid).second) continue;
      UniqueFd socket = DescriptorOf(watcher.pid, WATCH_PEER);
      if (!socket.valid()) continue;
      Speaker speaker = Meet(std::move(socket), pid);
      if (!speaker.socket.valid()) continue;
      speaker.note = NoteDescriptorOf(watcher.pid);
      return speaker;
    }
  }
  return {};
}

// A program of ours, at the other end of the socket.
absl::StatusOr<Speaker> StartProgram() {
  RK_ASSIGN_OR_RETURN(std::string program, FindCompanionProgram(KEEPER_PROGRAM));
  RK_ASSIGN_OR_RETURN(auto ends, PacketSocketPair());
  UniqueFd &ours = ends.first, &theirs = ends.second;
  SubprocessOptions start;
  start.argv = {program};
  // Nothing of ours that somebody may wait for the end of: it may live on.
  start.descriptors = {{theirs.get(), KEEPER_SOCKET}};
  UniqueFd note(::memfd_create("rekindle-gpu-note", MFD_CLOEXEC));
  if (note.valid()) start.descriptors.emplace_back(note.get(), WATCH_NOTE);
  start.working_directory.assign(1, '/');
  start.new_session = true;
  RK_ASSIGN_OR_RETURN(Subprocess program_start, Subprocess::Start(start));
  RK_RETURN_IF_ERROR(program_start.Wait().status());  // it goes on as nobody's child
  return Speaker{std::move(ours), true, std::move(note)};
}

}  // namespace

std::string ThreadKeeper::NoteOver(pid_t pid) {
  const Watcher watcher = WatcherOf(pid, pid);
  return watcher.pid == 0 ? "" : NoteOf(watcher.pid);
}

std::string ThreadKeeper::NoteOf(pid_t watcher) {
  const UniqueFd file = NoteDescriptorOf(watcher);
  std::string note(kLongestNote, '\0');
  const ssize_t n = file.valid() ? ::pread(file.get(), note.data(), note.size(), 0) : 0;
  note.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return note;
}

std::vector<pid_t> ThreadKeeper::Watchers() {
  std::vector<pid_t> watchers;
  for (pid_t pid : ListProcesses()) {
    const auto stat = ReadProcessStat(pid);
    if (stat.ok() && (stat->name == WATCH_NAME || stat->name == FAULT_WATCH_NAME)) watchers.push_back(pid);
  }
  return watchers;
}

bool ThreadKeeper::IsWatched(pid_t pid) { return WatcherOf(pid, pid).pid != 0; }

void ThreadKeeper::EndWatchOver(pid_t pid) {
  if (!IsWatched(pid)) return;
  if (auto keeper = Hold({pid}); keeper.ok()) (*keeper)->End(/*well=*/true);
}

bool ThreadKeeper::WaitsForMemory(pid_t pid) {
  return absl::c_any_of(WatchersOf(pid), [](const Watcher& watcher) { return watcher.has_fault; });
}

absl::StatusOr<std::unique_ptr<ThreadKeeper>> ThreadKeeper::Hold(absl::Span<const pid_t> pids,
                                                                 const DeviceAreas& areas) {
  Speaker speaker = SpeakToWatch(pids);
  if (!speaker.socket.valid()) {
    RK_ASSIGN_OR_RETURN(speaker, StartProgram());
  }
  std::unique_ptr<ThreadKeeper> keeper;
  RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] {
    keeper = std::make_unique<ThreadKeeper>(std::move(speaker.socket));
    return absl::OkStatus();
  }));
  keeper->note_ = std::move(speaker.note);
  for (pid_t pid : pids) {
    RK_RETURN_IF_ERROR(keeper->Send(kKeeperHold, pid));
    absl::Status stands = keeper->Await(kKeeperStands);
    if (!stands.ok())
      return Annotate(stands, absl::StrCat("having the threads of process ", pid, " stand still"));
    const auto known = areas.find(pid);
    // It has seen itself what is there.
    if (!speaker.takes_areas || known == areas.end() || !DeviceAreasOf(pid).empty()) continue;
    for (const DeviceArea& area : known->second) {
      RK_RETURN_IF_ERROR(keeper->Send(kKeeperArea, pid, area.bytes, area.address));
    }
  }
  return keeper;
}

ThreadKeeper::ThreadKeeper(UniqueFd socket, ThreadNumber number_there)
    : socket_(std::move(socket)), number_there_(std::move(number_there)), reader_([this] { Read(); }) {}

ThreadKeeper::~ThreadKeeper() {
  End(false);
  ::shutdown(socket_.get(), SHUT_WR);  // it sees that, and hangs up
  {
    absl::MutexLock lock(&mutex_);
    AwaitUntil(mutex_, absl::Condition(&gone_), Deadline(kMayTake));
  }
  ::shutdown(socket_.get(), SHUT_RDWR);
  reader_.join();
}

absl::Status ThreadKeeper::Run(absl::Span<const RestoreThread> threads, bool for_device_memory) {
  absl::Status first;
  may_run_ = true;
  for (const RestoreThread& thread : threads) {
    const absl::Status status = RunOne(thread, for_device_memory);
    const auto stat = ReadProcessStat(thread.pid);
    if (stat.ok() && !stat->ending()) first.Update(status);
  }
  return first;
}

absl::Status ThreadKeeper::RunOne(const RestoreThread& thread, bool for_device_memory) {
  const pid_t there = number_there_ ? number_there_(thread.thread) : thread.thread;
  if (there == 0) return absl::NotFoundError(absl::StrCat("process ", thread.pid, " has ended"));
  bool waits;
  {
    absl::MutexLock lock(&mutex_);
    waits = populating_.count(there) > 0;
  }
  if (waits) StopPopulating();
  {
    absl::MutexLock lock(&mutex_);
    if (gone_) return absl::UnavailableError("the thread keeper has ended");
    processes_[there] = thread.pid;
    stop_populating_ = false;
  }
  const bool huge = for_device_memory && HugePagesWanted(thread.pid);
  RK_RETURN_IF_ERROR(
      Send(kKeeperRun, there, huge ? kLeastDeviceMapping : 0, huge ? MostOf(thread.device_bytes) : 0));
  return Annotate(Await(kKeeperRuns), absl::StrCat("running the driver's thread in process ", thread.pid));
}

absl::Status ThreadKeeper::Pause() {
  StopPopulating();
  RK_RETURN_IF_ERROR(Send(kKeeperPause, 0));
  RK_RETURN_IF_ERROR(Await(kKeeperPaused));
  may_run_ = false;
  return absl::OkStatus();
}

absl::Status ThreadKeeper::Watch(const std::string& note) {
  ended_ = true;
  StopPopulating();
  // Without it all works as long as there is the ledger.
  if (note_.valid() && !note.empty() && ::ftruncate(note_.get(), 0) == 0)
    (void)!::pwrite(note_.get(), note.data(), note.size(), 0);
  return Send(kKeeperWatch, 0);
}

void ThreadKeeper::End(bool well) {
  if (std::exchange(ended_, true)) return;
  StopPopulating();
  (void)Send(kKeeperEnd, well ? 0 : 1);
}

void ThreadKeeper::EndAway() {
  constexpr int32_t kAway = 2;
  if (std::exchange(ended_, true)) return;
  StopPopulating();
  (void)Send(kKeeperEnd, kAway);
}

absl::Status ThreadKeeper::Send(KeeperWord what, int32_t id, uint64_t bytes, uint64_t address) {
  KeeperMessage message = {};
  message.what = what;
  message.id = id;
  message.bytes = bytes;
  message.address = address;
  return SendTo(socket_, message) ? absl::OkStatus() : ErrnoStatus(errno, "talking to the thread keeper");
}

absl::Status ThreadKeeper::Await(KeeperWord what) {
  absl::MutexLock lock(&mutex_);
  auto said = [this, what]()
                  ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_ || words_.count(what) > 0; };
  const bool in_time = AwaitUntil(mutex_, absl::Condition(&said), Deadline(kMayTake));
  const auto word = words_.find(what);
  if (!in_time) return absl::DeadlineExceededError("a thread does not come out of the kernel");
  if (word == words_.end()) return absl::UnavailableError("the thread keeper has ended");
  const int32_t error = word->second;
  words_.erase(word);
  if (error == 0) return absl::OkStatus();
  if (error == EPERM)
    return absl::FailedPreconditionError(
        "somebody else traces it, a debugger or CRIU, or we may not (kernel.yama.ptrace_scope)");
  return ErrnoStatus(error, "it can't be traced");
}

void ThreadKeeper::Read() {
  for (;;) {
    KeeperMessage message = {};
    const ssize_t n = ::recv(socket_.get(), &message, sizeof message, 0);
    if (n < 0 && errno == EINTR) continue;
    pid_t process = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (n != sizeof message) {
        // The kernel lets go of all that stood, next.
        gone_ = stop_populating_ = true;
        break;
      }
      if (message.what != kKeeperMapped) {
        words_[message.what] = message.id;
        continue;
      }
      process = processes_[message.id];
    }
    Populate(message, process);
  }
  StopPopulating();
}

void ThreadKeeper::Populate(const KeeperMessage& mapped, pid_t process) {
  const auto populate = [this, mapped, process] {
    if (process != 0) {
      PopulateFresh(process, mapped.id, mapped.address, mapped.bytes, stop_populating_);
    }
    (void)Send(kKeeperGoOn, mapped.id);
  };
  std::thread before;
  bool begun = false;
  {
    absl::MutexLock lock(&mutex_);
    // What it had mapped before is populated: it has gone on since.
    if (const auto known = populating_.find(mapped.id); known != populating_.end()) {
      before = std::move(known->second);
      populating_.erase(known);
    }
    std::thread thread;
    if (!stop_populating_) {
      begun = CatchNoMoreThreads([&] {
                thread = std::thread(populate);
                return absl::OkStatus();
              }).ok();
    }
    if (begun) populating_.emplace(mapped.id, std::move(thread));
  }
  if (before.joinable()) before.join();
  if (!begun) (void)Send(kKeeperGoOn, mapped.id);
}

void ThreadKeeper::StopPopulating() {
  std::map<int32_t, std::thread> populating;
  {
    absl::MutexLock lock(&mutex_);
    stop_populating_ = true;
    populating.swap(populating_);
  }
  for (auto& [id, thread] : populating) thread.join();
}

absl::StatusOr<std::unique_ptr<KeeperListener>> KeeperListener::Listen(const std::string& folder,
                                                                       Elsewhere criu, Handler handler) {
  std::unique_ptr<KeeperListener> listener(
      new KeeperListener(absl::StrCat(folder, "/", kSocket), std::move(criu), std::move(handler)));
  RK_ASSIGN_OR_RETURN(listener->listener_, ListenAt(listener->path_, SOCK_SEQPACKET));
  RK_RETURN_IF_ERROR(listener->thread_.Start([l = listener.get()] { l->Serve(); }));
  return listener;
}

KeeperListener::~KeeperListener() {
  End().IgnoreError();
  if (listener_.valid()) ::unlink(path_.c_str());
}

std::string KeeperListener::variable() const {
  return absl::StrCat(KEEPER_PATH, "=", criu_.mounts ? kSocket : path_);
}

absl::Status KeeperListener::End() {
  thread_.Stop();
  return missed_;
}

void KeeperListener::Miss(const absl::Status& why) {
  Log(LogLevel::kWarning, why.message());
  missed_.Update(why);
}

void KeeperListener::Serve() {
  std::optional<Deadline> since_full;
  for (;;) {
    const auto woken = thread_.Await(listener_.get());
    if (!woken.ok()) Miss(woken.status());
    if (!woken.ok() || *woken == StoppableThread::Woken::kStopped) return;
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) {
      const int error = errno;
      if (error == ECONNABORTED || error == EINTR) continue;
      if (!since_full) since_full.emplace(kFullMayTake);
      if (!since_full->passed()) {
        if (thread_.Pause(kPauseWhenFull)) continue;
        return;
      }
      // CRIU waits with the job frozen: that it is not connected any more is an answer.
      Miss(ErrnoStatus(error, "taking a connection of CRIU's"));
      ::unlink(path_.c_str());
      listener_.Reset();
      return;
    }
    since_full.reset();
    KeeperMessage first = {};
    ssize_t n;
    while ((n = ::recv(socket.get(), &first, sizeof first, 0)) < 0 && errno == EINTR) {
    }
    if (n != sizeof first || first.what != kKeeperStands) {
      Miss(absl::UnavailableError("a connection of CRIU's ended before it had said what it wants"));
      continue;
    }
    const absl::Status served = CatchNoMoreThreads([&] {
      ThreadKeeper keeper(std::move(socket), criu_.number_there);
      keeper.End(handler_(static_cast<KeeperMoment>(first.address), first.bytes != 0, keeper).ok());
      return absl::OkStatus();
    });
    // CRIU finds its connection gone.
    if (!served.ok()) Miss(Annotate(served, "answering CRIU"));
  }
}

bool ThreadsAreHeld() {
  const char* value = std::getenv(kHoldVariable);
  return value == nullptr || absl::string_view(value) != "0";
}

absl::StatusOr<std::string> PluginPath() {
  return FindCompanionProgram(absl::StrCat(kPluginFolder, "/", kPlugin));
}

}  // namespace rekindle::gpu
